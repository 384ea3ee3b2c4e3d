"""Keys of a row beside its tokens: which say what counts, as the program reads them (src/run/data/json_line.cc)."""

from __future__ import annotations

from typing import Any

MASKS = ("loss_mask", "completion_mask", "assistant_masks", "assistant_mask", "response_mask")  # 0: no label
WORDS = ("mask", "label", "target", "position", "segment", "token_type", "weight", "embeds", "seq_len", "seqlen", "seq_idx",
         "decoder", "encoder", "pixel_values", "input_features", "input_values", "past_key_values")
ON = ("train", "trainable", "training", "train_on_turn", "learn", "loss")  # false: not to be learned
OFF = ("mask", "masked", "ignore")  # true: not to be learned
SCALE = "loss_scale"
PREFERRED = ("label", "kto_tag")  # beside a chat: whether its answer is a good one
SPOKEN = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}
PIECES = ("seq_len", "seqlen", "seq_idx", "position", "segment")  # several documents in one


def may_matter(key: str) -> bool:
    """Whether what stands there has to be looked at, although it is not used."""
    name = key.lower()
    return name in (*ON, *OFF, SCALE, *PREFERRED) or any(word in name for word in WORDS)


def lost_meaning(key: str, value: Any, tokens: int | None = None) -> str:
    """Why a key that is not read may matter; empty: it does not, as what stands there says nothing of tokens."""
    name = key.lower()
    if value is None or value is False or (isinstance(value, (list, dict)) and not value) or not any(
            word in name for word in WORDS) or name == "special_tokens_mask":
        return ""
    row = value if isinstance(value, list) else None
    if "weight" in name:
        if row is not None and any(one != 1 for one in row):
            return "weights of tokens are not used; remove it"
        if isinstance(value, (int, float)) and value != 1:
            return "a weight of a document is not used; remove the document, or the key"
        return ""
    if row is None and (isinstance(value, bytes) or isinstance(value, str) and name in MASKS):
        return "it may be a mask in another form, and is not used; remove it, or write prompt and completion, or messages"
    if row is None and not isinstance(value, dict):
        return ""  # a class, a title
    if row is not None and all(isinstance(one, str) for one in row) and "mask" not in name:
        return ""  # names
    if row is not None and ("token_type" in name or "segment" in name) and not any(row):
        return ""
    if row is not None and tokens is not None and any(word in name for word in PIECES) and row in (
            [tokens], [0, tokens], list(range(tokens)) if "position" in name else [tokens]):
        return ""  # one document
    if any(word in name for word in PIECES):
        return "it may say that the row is several documents; give each a row of its own, and remove the key"
    return "it may say what counts, and is not used; remove it, or write labels, the token itself or -100"


def untrained(key: str, value: Any) -> str:
    """Why a turn or row that says so is not to be learned; empty: it does not say so."""
    name = key.lower()
    said = isinstance(value, (bool, int, float))
    if said and (name in ON and not value or name in OFF and value):
        return "it is not to be learned, which is not used"
    if "weight" in name or name == SCALE:
        ones = value == 1 or isinstance(value, list) and all(one == 1 for one in value)
        return "" if value is None or ones or isinstance(value, str) else "weights are not used"
    return ""


def untrained_turn(key: str, value: Any) -> str:
    """As untrained(), of a turn: there text says so, too, as some tables hold numbers and booleans."""
    name = key.lower()
    if isinstance(value, str) and (name in (*ON, *OFF, SCALE) or "weight" in name):
        wanted = name not in OFF
        return "" if SPOKEN.get(value.strip().lower()) is wanted else (
            f"it does not say {'true or 1' if wanted else 'false or 0'}, and what else it may say is not used")
    return untrained(key, value)
