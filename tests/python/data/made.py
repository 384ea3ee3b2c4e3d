"""Tokenizers of several kinds, trained here on a small corpus, and chat templates in the ways of known models."""

import random

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

SCRIPTS = {
    "Latin": "The quick brown fox; größer, façade, Øst, Łódź, naïve café.",
    "Greek": "Το γρήγορο καφέ αλεπού πηδά.", "Cyrillic": "Быстрая лиса прыгает. Ґанок і їжак.",
    "Arabic": "الثعلب البني السريع يقفز", "Hebrew": "השועל החום המהיר", "Devanagari": "तेज भूरी लोमड़ी कूदती है",
    "Thai": "สุนัขจิ้งจอกสีน้ำตาล", "Tamil": "விரைவான பழுப்பு நரி", "Chinese": "敏捷的棕色狐狸跳过懒狗。",
    "Japanese": "素早い茶色の狐が、のろまな犬を飛び越える。カタカナ", "Korean": "빠른 갈색 여우가 뛰어넘는다", "Georgian": "სწრაფი ყავისფერი მელა",
    "Amharic": "ፈጣን ቡናማ ቀበሮ", "Khmer": "កញ្ជ្រោងពណ៌ត្នោត", "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 ☃️", "combining": "e\u0301 a\u0308\u0323 Z\u0351\u036b",
    "spaces": " \t a\u00a0b\u2003c\u200b\u3000 \n\n\n d \r\n e  ", "code": "for (int i=0; i<10; ++i) { x[i] += 0x1f; } // \\n",
    "digits": "3.14159 1,000,000 ١٢٣ Ⅷ ½", "surrogates": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 😀"}


def random_text(seed):
    """Random bytes, decoded with replacement; without NUL, which text does not have."""
    draw = random.Random(seed)
    return bytes(draw.randrange(1, 256) for _ in range(draw.randrange(1, 400))).decode("utf-8", "replace")


def corpus():
    return [*SCRIPTS.values(), *("user assistant system hello what is the answer of this question? " * 3, "A B C " * 9)]


def wrapped(tokenizer, **special):
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


# as Llama 3 and Qwen split text: line breaks stay together whatever follows, which they do not for GPT-2
LINES = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_bpe(bos=None, end="<|end|>", more=(), lines=False):
    """As GPT-2's, or (lines) Llama 3's: bytes, merged.  With `bos` it is added before each text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if lines:
        made.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(tokenizers.Regex(LINES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    special = [token for token in (bos, end, *more) if token]
    made.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if bos:
        made.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, made.token_to_id(bos))])
    return wrapped(made, bos_token=bos, eos_token=end, additional_special_tokens=list(more))


def word_piece():
    """As BERT's: [CLS] before, [SEP] after, [UNK] for what it does not know, and no EOS."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(corpus(), trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[
        (token, made.token_to_id(token)) for token in ("[CLS]", "[SEP]")])
    return wrapped(made, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]")


def unigram():
    """As SentencePiece's: spaces are letters, <s> before, bytes or <unk> for what it does not know."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.train_from_iterator(corpus(), trainers.UnigramTrainer(
        vocab_size=400, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", made.token_to_id("<s>"))])
    return wrapped(made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def words(vocabulary, **special):
    """One token a word: a vocabulary of letters or k-mers."""
    made = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token=special.get("unk_token")))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return wrapped(made, **special)


CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
          "{% if m.role == 'assistant' %}OPEN{{ m.content + '<|im_end|>' }}CLOSE{% else %}{{ m.content + '<|im_end|>' }}"
          "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
LLAMA2 = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
          "{% else %}OPEN{{ ' ' + m.content + ' ' + eos_token }}CLOSE{% endif %}{% endfor %}")
LLAMA3 = ("{{ bos_token }}{% for m in messages %}{{ '<|head|>' + m.role + '<|/head|>\\n\\n' }}{% if m.role == 'assistant' %}"
          "OPEN{{ m.content | trim + '<|eot|>' }}CLOSE{% else %}{{ m.content | trim + '<|eot|>' }}{% endif %}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}")
GEMMA = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
         "{{ '<|turn|>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}{% if m.role == 'assistant' %}OPEN"
         "{{ m.content | trim + '<|turn_end|>' }}CLOSE{% else %}{{ m.content | trim + '<|turn_end|>' }}{% endif %}{{ '\\n' }}"
         "{% endfor %}{% if add_generation_prompt %}{{ '<|turn|>model\\n' }}{% endif %}")
MISTRAL = ("{{ bos_token }}{% if tools %}{{ '[TOOLS]' + tools | tojson + '[/TOOLS]' }}{% endif %}{% for m in messages %}"
           "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% elif m.tool_calls %}OPEN"
           "{{ '[CALL]' + m.tool_calls | tojson + eos_token }}CLOSE{% elif m.role == 'tool' %}{{ '[RESULT]' + m.content }}"
           "{% else %}OPEN{{ m.content + eos_token }}CLOSE{% endif %}{% endfor %}")
QWEN = ("{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
        "{% endfor %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}OPEN"
        "{% if loop.index0 > ns.last %}{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
        "{{ m.content + '<|im_end|>' }}CLOSE{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
TEMPLATES = {"ChatML": CHATML, "Llama-2": LLAMA2, "Llama-3": LLAMA3, "Gemma": GEMMA, "Mistral": MISTRAL, "Qwen": QWEN}
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>", "<|turn|>", "<|turn_end|>")


def template(name, marks):
    """A template with or without generation marks."""
    return TEMPLATES[name].replace("OPEN", "{% generation %}" if marks else "").replace(
        "CLOSE", "{% endgeneration %}" if marks else "")


def chatty(name, marks, lines=True):
    made = byte_bpe(bos="<s>", end="</s>", more=SPECIAL, lines=lines)
    made.chat_template = template(name, marks)
    return made
