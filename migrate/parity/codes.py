"""The codes of `parity`: why each matters and what to do. All are errors: a difference is never accepted in silence."""

from __future__ import annotations

from migrate.report import Finding, Severity

# code: (why, fix)
RULES: dict[str, tuple[str, str]] = {
    "P001": (
        "A stage that did not run proves nothing.",
        "Read the reason; `msmigrate doctor` tells whether torch, transformers and MindSpore work here.",
    ),
    "P002": (
        "A comparison over fewer tensors than the model has can pass while the rest is wrong.",
        "Check the names on both sides; a missing gradient usually means a parameter cut off from the loss.",
    ),
    "P003": (
        "Different shapes or dtypes are different models.",
        "Compare both config.json files, and `msmigrate weights inspect` of both directories.",
    ),
    "P004": (
        "NaN and infinity equal nothing; what follows from them cannot be compared.",
        "Find the first module that makes them; `msmigrate weights inspect` counts them in the weights.",
    ),
    "P005": (
        "Two zero tensors agree whatever the code does.",
        "Use weights and a batch that reach this tensor.",
    ),
    "P101": (
        "Weights are copied, not computed: every bit must survive.",
        "Convert again and run `msmigrate weights verify`; if it passes, the loader misplaces the tensor.",
    ),
    "P102": (
        "The code report names the tensors of each class; what it does not name is compared by its own name.",
        "Nothing, unless the report was edited: then convert the repository again.",
    ),
    "P201": (
        "The first module that differs on equal inputs holds the fault; later ones inherit it.",
        "Compare this module's settings in config.json (eps, rope, head sizes, activation, bias), then its code.",
    ),
    "P202": (
        "They lie behind the first divergence, so they inherit it; faults of their own may hide there.",
        "Repair the first divergence and compare again.",
    ),
    "P203": (
        "Fed with the reference's own input, this module gives a wrong output: it is guilty, not an heir.",
        "Compare its code and its settings with the original; arguments behind the first (masks, positions) are the "
        "candidate's own, so also what makes them.",
    ),
    "P204": (
        "Fed with the reference's own values, the code between these submodules computes something else.",
        "Compare what this module does between them: attention, positions, mask, activation, scale, residual.",
    ),
    "P205": (
        "Each module alone agrees with the reference: no fault, but rounding that adds up through the model.",
        "Compare with weights of another state; if the bounds are too tight for this model, its own rounding in fp64 "
        "(facts) must show it.",
    ),
    "P206": (
        "The first module whose inputs agree and whose output does not holds the fault.",
        "Compare what this module computes with the original.",
    ),
    "P301": (
        "With equal logits only the loss itself can differ: shift, ignored labels, reduction, or its dtype.",
        "Compare label shift, the ignored index (-100) and the divisor (valid positions, not batch times length).",
    ),
    "P302": (
        "The number of valid positions normalises loss and gradients; a wrong one scales every update.",
        "Count labels after the shift that are not -100.",
    ),
    "P401": (
        "Equal losses do not prove equal gradients: detached, doubled or unreduced ones train another model.",
        "Look for stop_gradient, a hand-written bprop, tied weights and scaling on the way to this parameter.",
    ),
    "P402": (
        "Fed with the reference's own inputs and the gradient of its output, this module makes a wrong gradient: it is "
        "guilty, not an heir.",
        "Where stage F passes, look at what only the backward pass has: stop_gradient, a hand-written bprop, a "
        "detached or copied parameter, a factor on a gradient.",
    ),
    "P403": (
        "Fed with the reference's own values and gradients, the code between these submodules makes another gradient.",
        "Where stage F passes, look at what only the backward pass has: stop_gradient, a hand-written bprop, a "
        "branch that is cut off.",
    ),
    "P404": (
        "Each module alone makes the reference's gradients: no fault, but rounding that adds up on the way back.",
        "Compare with weights of another state; PyTorch's own rounding in fp64 (facts) must show it.",
    ),
    "P405": (
        "Without gradients at the modules it is not known where they part.",
        "Read the reason; the findings of stage G name the parameters, from the loss backwards.",
    ),
    "P409": (
        "Where the true gradient is zero (a bias in front of a softmax or a normalisation), both sides hold their own "
        "rounding, and Adam makes full steps of it.",
        "Run the reference's script again in fp64 (`model.double()`), and hand its dump in with --noise DIR.",
    ),
    "P601": (
        "The same gradients must move the same weights by as much: another optimizer is another training.",
        "Compare decay (decoupled, and of what), epsilon, bias correction, clipping (one norm over all), accumulation "
        "(sum of what was divided once), and the first step of the warmup.",
    ),
    "P701": (
        "Ranks that hold the same weights must have the same bits of them, of their gradients and of their outputs.",
        "Look for a sum over ranks that is not taken: a replicated norm under sequence parallelism, gradients over dp, "
        "a tied table over the two ends of the pipeline.",
    ),
    "P702": (
        "One process computes what PyTorch does, so weights and model are right, and what the ranks add is not.",
        "Compare with the smallest layout that differs.",
    ),
    "P703": (
        "The layout is innocent as long as one process differs at the same stage.",
        "Leave out --layout, and repair the model in one process first.",
    ),
    "P501": (
        "Runs from the same weights and batches drift apart only by rounding, which grows slowly.",
        "Find the first step that differs; at step 1 it is the model or the batch, later the optimizer or schedule.",
    ),
    "P502": (
        "Curves with different steps are different runs.",
        "Run both for the same steps, or limit the comparison with --steps.",
    ),
}


def finding(code: str, message: str, *, file: str | None = None, tensor: str | None = None) -> Finding:
    """A finding with the reasons of its code."""
    why, fix = RULES[code]
    return Finding(code, Severity.ERROR, message, why, fix, file=file, tensor=tensor)
