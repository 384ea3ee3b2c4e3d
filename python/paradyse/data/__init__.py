"""People's data as token ids and label masks: text, chats, FASTA.  The command is paradyse-data.

    from paradyse.data import Prepared
    for document in Prepared(pathlib.Path("prepared")):
        document.ids, document.mask, document.place

docs/reference/data.md has the format of a prepared folder.  cli.py is the command, prepare.py its main part: files.py
finds files, records.py reads them, meaning.py says what a row is, maker.py makes documents of rows by tokenizer.py,
chat.py and sequences.py, and folder.py writes them.  corpus.py reads ids of all formats for stats, inspect and convert.
"""

from .document import Document, Place
from .folder import Prepared
from .maker import Options
from .prepare import prepare
from .refusal import Refused

__all__ = ["Document", "Options", "Place", "Prepared", "Refused", "prepare"]
