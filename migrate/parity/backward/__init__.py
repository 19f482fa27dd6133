"""Why stage G fails: where the gradients part, which modules are guilty and which inherit, each judged alone."""
