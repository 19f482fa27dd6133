"""A converted repository against its original: modules of both, built from recipes, compared stage by stage."""
