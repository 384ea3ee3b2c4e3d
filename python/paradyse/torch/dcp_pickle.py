"""Pickles of strangers, as data that describes what they would make: nothing is called, imported or changed.

What pickle itself does for a file from a stranger is more than a list of allowed names can prevent: it sets
attributes of classes, and it hashes whatever is a key, for years where a tuple holds another twice, that one
again another twice, and so on.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Iterable
from typing import Any

# Of protocol 2 and later, without sets, extensions, buffers, and what duplicates or drops values.
OPS = ("PROTO FRAME STOP MARK EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM "
       "SETITEMS NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT SHORT_BINBYTES BINBYTES "
       "SHORT_BINUNICODE BINUNICODE BINUNICODE8 GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD BINPERSID BINGET "
       "LONG_BINGET BINPUT LONG_BINPUT MEMOIZE")
CODES = {op.name: ord(op.code) for op in pickletools.opcodes}


class Made:
    """What a pickle would make: by the name of its class or function, of arguments, in a state."""

    __slots__ = ("args", "name", "state")

    def __init__(self, name: str, args: Any) -> None:
        self.name = name
        self.args = args
        self.state: Any = None


class Name(str):
    """Of a class or function that a pickle may name."""

    __slots__ = ()


InPython: Any = pickle._Unpickler  # not the one in C, whose operations cannot be others


class Unpickler(InPython):  # type: ignore[misc]
    """`find`: what "module.name" is, a Name or a value; raises UnpicklingError for one that must not be there."""

    def __init__(self, content: bytes, find: Callable[[str, str], Any]) -> None:
        super().__init__(io.BytesIO(content))
        self.find = find

    def find_class(self, module: str, name: str) -> Any:
        return self.find(module, name)

    def persistent_load(self, pid: Any) -> Made:
        return Made("persistent", pid)

    def make(self) -> None:
        args = self.stack.pop()
        name = self.stack.pop()
        if not isinstance(name, Name) or not isinstance(args, tuple):
            raise pickle.UnpicklingError("it calls what is no known class or function")
        self.stack.append({} if name == "OrderedDict" and not args else Made(name, args))

    def load_build(self) -> None:
        state = self.stack.pop()
        made = self.stack[-1]
        if not isinstance(made, Made) or made.state is not None:
            raise pickle.UnpicklingError("it changes what it has not made")
        made.state = state

    def add(self, items: Iterable[tuple[Any, Any]]) -> None:
        into = self.stack[-1]
        for key, value in items:
            if not isinstance(into, dict) or not isinstance(key, str | int | Made):
                raise pickle.UnpicklingError("it has a key that is no name")
            into[key] = value

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self.add([(key, value)])

    def load_setitems(self) -> None:
        items = self.pop_mark()
        self.add(zip(items[::2], items[1::2]))

    def refuse_op(self) -> None:
        raise pickle.UnpicklingError("it has an operation that no description of tensors needs")


Unpickler.dispatch = {
    **{code: InPython.dispatch[code] if name in OPS.split() else Unpickler.refuse_op for name, code in CODES.items()},
    CODES["NEWOBJ"]: Unpickler.make, CODES["REDUCE"]: Unpickler.make, CODES["BUILD"]: Unpickler.load_build,
    CODES["SETITEM"]: Unpickler.load_setitem, CODES["SETITEMS"]: Unpickler.load_setitems}


def described(content: bytes, find: Callable[[str, str], Any]) -> Any:
    """What the pickle would make.  Raises some Exception for bytes that are none, or none that is read here."""
    try:
        return Unpickler(content, find).load()
    except KeyError as error:
        if isinstance(error.args[0], int):  # a byte that is no opcode
            raise pickle.UnpicklingError("it is no pickle (a git-lfs pointer? fetch the file itself)") from None
        raise
