"""Values that a constructor registers: modules of torch and of the repository, lists of them, parameters."""

from __future__ import annotations

import ast
import copy
from collections.abc import Sequence

import libcst as cst

from mappings.api.row import Row, parse_signature
from mappings.formats.weights_table import Tensor
from migrate.code.context import code_of
from migrate.code.rows.binding import Refusal, bind
from migrate.code.weights_table.dtypes import DEFAULT, given_dtype, tensor_dtype
from migrate.code.weights_table.growing import Growing
from migrate.code.weights_table.leaves import EMPTY, LEAVES, SIGNATURES, Leaf
from migrate.code.weights_table.questions import LISTS, PARAMETERS, Questions
from migrate.code.weights_table.symbolic import Scope, UnknownError, text, truth
from migrate.code.weights_table.tensors import tensor_shape

_INDICES = "ijklmn"
_SPATIAL = {"1": 1, "2": 2, "3": 3}


class Values(Questions):
    """What the values in the constructor of one class are, at one place of the tree of modules."""

    def read_class(self, name: str, args: Sequence[cst.Arg] | None, outer: Values | None) -> None:
        """Everything that objects of a class of the repository hold (`constructor.Reader`)."""
        raise NotImplementedError

    # -- values
    def _module(self, node: cst.BaseExpression, path: str, attribute: str | None) -> None:
        """A module or parameter that is registered under a path."""
        if isinstance(node, cst.IfExp):
            is_taken, condition = self._condition(node.test)
            for wanted, words, branch in ((True, condition, node.body), (False, f"not ({condition})", node.orelse)):
                if is_taken in (None, wanted):
                    before, self.when = self.when, self.when if is_taken is not None else (*self.when, words)
                    self._module(branch, path, attribute)
                    self.when = before
            return
        if isinstance(node, cst.Name) and node.value == "None":
            return
        if (handed := self._handed(node)) is not None:
            value, reader = handed
            reader = copy.copy(reader)
            reader.when = self.when
            reader._module(value, path, None)
            return
        if not isinstance(node, cst.Call):
            self._unknown(node, f"{path} is {code_of(node)}, which is made elsewhere")
            return
        maker = self._maker(node.func)
        qualified = "" if maker is None else maker.name
        name = qualified if qualified.startswith("torch.") else None
        if maker is not None:
            node = maker.call(node)
        if name in PARAMETERS and node.args:
            self._tensor(node.args[0].value, path, "parameter", True, node)
        elif qualified in LEAVES:
            self._leaf(node, qualified, path)
        elif qualified in EMPTY:
            return
        elif qualified == "copy.deepcopy" and (copied := self._assigned_once(node.args[0].value)) is not None:
            self._module(copied, path, attribute)
        elif (chosen := self._assigned_once(node.func)) is not None and isinstance(chosen, cst.IfExp):
            either = chosen.with_changes(
                body=cst.Call(chosen.body, node.args), orelse=cst.Call(chosen.orelse, node.args)
            )
            self._module(either, path, attribute)
        elif name in LISTS:
            self._list(node, path, attribute)
        elif name == "torch.nn.ModuleDict":
            self._dictionary(node, path, attribute)
        elif qualified in self.analysis.symbols.classes and self.analysis.symbols.is_module(qualified):
            below = type(self)(self.analysis, self.found, self.stack, f"{path}.", self.when)
            below.read_class(qualified, node.args, self)
        else:
            self._unknown(node, f"what {code_of(node.func)} gives {path} is not known")

    def _tensor(
        self, value: cst.BaseExpression, path: str, kind: str, persistent: bool, place: cst.BaseExpression
    ) -> None:
        try:
            shape = tensor_shape(value, self.scope, self.file.resolver)
            shape = self._local_shape(value) if shape is None else shape
        except UnknownError:
            shape = None
        layout = "as torch" if shape is None or shape else "[]"
        dtype = tensor_dtype(value, self.file.resolver)
        self.found.add(Tensor(path, path, kind, persistent, shape, dtype, layout, None, self.when, self._place(place)))

    def _local_shape(self, value: cst.BaseExpression) -> tuple[str, ...] | None:
        """Of a tensor that a local name stands for."""
        assigned = self._assigned_once(value)
        return None if assigned is None else tensor_shape(assigned, self.scope, self.file.resolver)

    def _leaf(self, node: cst.Call, name: str, path: str) -> None:
        signature = SIGNATURES.get(name)
        row = Row(name, "same", parse_signature(signature)) if signature else self.analysis.table.rows(name)[0]
        bound = bind(row, node.args)
        if isinstance(bound, Refusal):
            self._unknown(node, f"{path}: {bound.reason}")
            return
        values: dict[str, ast.expr | None] = {
            key: ast.parse(str(default), mode="eval").body for key, default in bound.defaults.items()
        }
        values |= {key: self._expression(arg.value) for key, arg in bound.values.items()}
        arguments = Scope(values, self_name="")
        for leaf in LEAVES[name]:
            conditions = self.when
            if leaf.when is not None:
                try:
                    tree = arguments.put_in(ast.parse(leaf.when, mode="eval").body)
                except UnknownError:
                    tree = ast.Name(leaf.when)
                parts = [v for v in tree.values if truth(v) is not True] if isinstance(tree, ast.BoolOp) else [tree]
                if any(truth(part) is False for part in parts):
                    continue
                conditions = (*conditions, *(text(part) for part in parts if truth(part) is None))
            shape = _leaf_shape(leaf, arguments, _SPATIAL.get(name[-2:-1], 1))
            kind, dtype = "buffer" if leaf.buffer else "parameter", leaf.dtype
            if dtype is None:
                given = bound.values.get("dtype")
                dtype = DEFAULT if given is None else given_dtype(given.value, self.file.resolver)
            full = f"{path}.{leaf.name}"
            place = self._place(node)
            self.found.add(Tensor(full, full, kind, True, shape, dtype, leaf.layout, None, conditions, place))

    def _list(self, node: cst.Call, path: str, attribute: str | None) -> None:
        args = node.args
        if self.file.resolver.torch_name(node.func) == "torch.nn.Sequential":
            items: Sequence[cst.BaseElement | cst.Arg] = args
        elif not args:
            items = ()
        elif isinstance(args[0].value, cst.List | cst.Tuple):
            items = args[0].value.elements
        else:
            self._comprehension(node, args[0].value, path)
            return
        if len(items) == 1 and isinstance(items[0], cst.Arg) and items[0].star:
            self._comprehension(node, items[0].value, path)
            return
        for place, item in enumerate(items):
            if isinstance(item, cst.StarredElement) or (isinstance(item, cst.Arg) and item.star):
                self._unknown(node, f"{path}: {code_of(item)} may be any number of modules")
                break
            self._module(item.value, f"{path}.{place}", None)
        if attribute is not None:
            self.lists[attribute] = Growing(self.when, {(): len(items)})

    def _comprehension(self, node: cst.Call, value: cst.BaseExpression, path: str) -> None:
        if isinstance(value, cst.ListComp | cst.GeneratorExp) and not value.for_in.ifs:
            count = range_count(value.for_in.iter, self.scope)
            if count is not None and value.for_in.inner_for_in is None:
                self._repeated(value.elt, f"{path}.", count, value.for_in.target)
                return
        self._unknown(node, f"{path}: how many modules {code_of(value)} gives is not known")

    def _repeated(
        self, element: cst.BaseExpression, prefix: str, count: str, target: cst.BaseAssignTargetExpression
    ) -> None:
        if count.isdigit() and int(count) == 0:
            return
        index = next(i for i in _INDICES if f"{{{i}}}" not in prefix and self.found.repeated.get(i, count) == count)
        self.found.repeated[index] = count
        before = dict(self.scope.names)
        if isinstance(target, cst.Name):
            self.scope.names[target.value] = ast.Name(index)
        self._module(element, f"{prefix}{{{index}}}", None)
        self.scope.names = before

    def _dictionary(self, node: cst.Call, path: str, attribute: str | None) -> None:
        if attribute is not None:
            self.lists[attribute] = None
        value = node.args[0].value if node.args else None
        if value is None:
            return
        if isinstance(value, cst.Call) and code_of(value.func) == "dict" and all(arg.keyword for arg in value.args):
            for arg in value.args:
                assert arg.keyword is not None
                self._module(arg.value, f"{path}.{arg.keyword.value}", None)
            return
        pairs = value.elements if isinstance(value, cst.Dict) else ()
        if not pairs:
            self._unknown(node, f"{path}: the names of {code_of(value)} are not known")
        for pair in pairs:
            if isinstance(pair, cst.DictElement) and isinstance(pair.key, cst.SimpleString):
                self._module(pair.value, f"{path}.{pair.key.raw_value}", None)
            else:
                self._unknown(node, f"{path}: the name of {code_of(pair)} is not known")


def range_count(node: cst.BaseExpression, scope: Scope) -> str | None:
    """How often `for i in range(n)` runs."""
    if not isinstance(node, cst.Call) or code_of(node.func) != "range" or len(node.args) != 1:
        return None
    try:
        return text(scope.expression(node.args[0].value))
    except UnknownError:
        return None


def _leaf_shape(leaf: Leaf, arguments: Scope, axes: int) -> tuple[str, ...] | None:
    sizes: list[str] = []
    for size in leaf.shape:
        try:
            tree = arguments.put_in(ast.parse(size.removeprefix("*"), mode="eval").body)
        except UnknownError:
            return None
        if not size.startswith("*"):
            sizes.append(text(tree))
        elif isinstance(tree, ast.Tuple | ast.List):
            sizes += [text(element) for element in tree.elts]
        elif size == "*kernel_size" and (axes == 1 or isinstance(tree, ast.Constant)):
            sizes += [text(tree)] * axes
        elif size == "*kernel_size":
            return None  # a number or a pair
        else:
            sizes.append(text(tree))
    return tuple(sizes)
