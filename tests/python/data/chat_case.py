"""Chats: the loss is on what the assistant said and on nothing else, whatever the template, or the chat is refused."""

import json
import unittest

import made
import transformers
from paradyse.data.folder import Prepared
from paradyse.data.maker import Options
from paradyse.data.prepare import prepare
from support import FolderTest

END = {"ChatML": "<|im_end|>", "Llama-2": "</s>", "Llama-3": "<|eot|>", "Gemma": "<|turn_end|>", "Mistral": "</s>",
       "Qwen": "<|im_end|>"}
CHAT = [("user", "What is it?"), ("assistant", "The answer, \u00e9\u4f60\U0001f600."), ("user", "hello"),
        ("assistant", "So: 3.14 it is!")]


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


class ChatTest(FolderTest):
    def prepared(self, tokenizer, *rows, **options):
        """Documents of rows; `self.theirs` is the tokenizer as transformers loads it."""
        self.write("c.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if isinstance(tokenizer, str):
            name = tokenizer
        else:
            name = f"t{len(list(self.folder.iterdir()))}"
            tokenizer.save_pretrained(self.folder / name)
        self.theirs = transformers.AutoTokenizer.from_pretrained(self.folder / name)
        out = self.folder / f"out{len(list(self.folder.iterdir()))}"
        self.said = "\n".join(prepare(Options(str(self.folder / name), (str(self.folder / "c.jsonl"),), **options), out))
        return list(Prepared(out))

    def runs(self, document):
        """Texts of the runs of tokens whose labels count."""
        found, run = [], []
        mask = [1] * len(document.ids) if document.mask is None else document.mask
        for one, counts in zip([*document.ids, 0], [*mask, 0]):
            if counts:
                run.append(int(one))
            elif run:
                found.append(self.theirs.decode(run))
                run = []
        return found

    def test_the_loss_is_on_the_assistants_turns(self):
        for name in made.TEMPLATES:
            for marks in (True, False):
                if name == "Qwen" and not marks:
                    continue  # below: it shows earlier turns in other words
                document, = self.prepared(made.chatty(name, marks), {"messages": turns(*CHAT)})
                text = self.theirs.apply_chat_template(turns(*CHAT), tokenize=False)
                with self.subTest(name, marks=marks):
                    self.assertEqual(document.ids.tolist(), self.theirs(text, add_special_tokens=False)["input_ids"])
                    self.assertLessEqual(document.ids.tolist().count(self.theirs.bos_token_id), 1)
                    think = "<think>\n\n</think>\n\n" if name == "Qwen" else ""
                    said = [CHAT[1][1] + END[name], think + CHAT[3][1] + END[name]]
                    if name == "Llama-2":
                        said = [CHAT[1][1] + " " + END[name], CHAT[3][1] + " " + END[name]]
                    self.assertEqual([run.strip() for run in self.runs(document)], said)
                    how = "the template's generation marks" if marks else "differencing"
                    self.assertIn(f"loss: completions, and the assistant's turns by {how}", self.said)

    def test_marks_are_those_of_transformers(self):
        for name in made.TEMPLATES:
            document, = self.prepared(made.chatty(name, True), {"messages": turns(*CHAT)})
            theirs = self.theirs.apply_chat_template(turns(*CHAT), return_dict=True, return_assistant_tokens_mask=True)
            self.assertEqual(document.mask.tolist(), theirs["assistant_masks"], name)

    def test_sentencepiece(self):
        tokenizer = made.unigram()
        tokenizer.chat_template = made.template("Llama-2", False)
        document, = self.prepared(tokenizer, {"messages": turns(("user", "hello"), ("assistant", "the answer"))})
        self.assertEqual([run.strip() for run in self.runs(document)], ["the answer </s>"])
        self.assertEqual(document.ids.tolist().count(self.theirs.bos_token_id), 1)

    def test_a_template_that_changes_earlier_turns_is_refused_not_guessed(self):
        tokenizer = made.chatty("Qwen", False)
        self.refused(["c.jsonl:1", "in other words", "--chat-template FILE", "--loss last", "--loss all"], self.prepared,
                     tokenizer, {"messages": turns(*CHAT)})
        single = turns(*CHAT[:2])
        single[1]["reasoning_content"] = "hm"
        document, = self.prepared(tokenizer, {"messages": single})
        self.assertEqual(self.runs(document), [f"<think>\nhm\n</think>\n\n{CHAT[1][1]}<|im_end|>\n"])
        document, = self.prepared(tokenizer, {"messages": turns(*CHAT)}, loss="last")
        self.assertEqual(self.runs(document), [f"<think>\n\n</think>\n\n{CHAT[3][1]}<|im_end|>\n"])
        self.assertIn("loss: the last turn of the assistant (--loss last)", self.said)
        document, = self.prepared(tokenizer, {"messages": turns(*CHAT)}, loss="all")
        self.assertEqual(document.labels, len(document.ids) - 1)
        self.assertIn("loss: all tokens of chats (--loss all)", self.said)
        document, = self.prepared(tokenizer, {"messages": turns(*CHAT)}, chat_template=made.template("Qwen", True))
        self.assertEqual(len(self.runs(document)), 2)

    def test_the_last_turn_by_marks(self):
        document, = self.prepared(made.chatty("ChatML", True), {"messages": turns(*CHAT, ("user", "bye"))}, loss="last")
        self.assertEqual(self.runs(document), [CHAT[3][1] + "<|im_end|>"])
        document, = self.prepared(made.chatty("ChatML", False), {"messages": turns(*CHAT, ("user", "bye"))}, loss="last")
        self.assertEqual(self.runs(document), [CHAT[3][1] + "<|im_end|>\n"])

    def test_earlier_thinking_is_told(self):
        chat = turns(*CHAT)
        chat[1]["reasoning_content"] = chat[3]["reasoning_content"] = "let me think"
        self.prepared(made.chatty("Qwen", True), {"messages": chat})
        self.assertNotIn("does not show", self.said)  # the last one is shown, in the same words
        chat[1]["reasoning_content"] = "other thoughts"
        self.prepared(made.chatty("Qwen", True), {"messages": chat})
        self.assertIn("chats with reasoning_content that the template does not show: 1 chat", self.said)

    def test_a_token_over_the_border_is_refused(self):
        tokenizer = made.byte_bpe(more=["ab"])
        tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
        self.refused(["c.jsonl:1", "has other tokens", "--loss"], self.prepared, tokenizer,
                     {"messages": turns(("user", "xa"), ("assistant", "by"))})
        # GPT-2's line breaks are one token at the end of a text, and two before a word
        self.refused(["c.jsonl:1", "has other tokens", "--chat-template"], self.prepared,
                     made.chatty("Llama-3", False, lines=False), {"messages": turns(*CHAT)})
        self.refused(["c.jsonl:1", "continues into the completion"], self.prepared, tokenizer, {"prompt": "xa", "completion": "b"})

    def test_chats_without_an_answer_are_left_out_and_told(self):
        rows = [{"messages": turns(*CHAT)}, {"messages": turns(("user", "a"))}, {"messages": []},
                {"messages": turns(("user", "a"), ("assistant", ""))}, {"prompt": "a", "completion": ""}]
        self.assertEqual(len(self.prepared(made.chatty("ChatML", False), *rows)), 1)
        self.assertIn("left out: chats without a turn of the role assistant: 2 chats; first " + str(self.folder / "c.jsonl:2"),
                      self.said)
        self.assertIn("chats with empty turns of the assistant alone: 1 chat", self.said)
        self.assertIn("empty completions: 1 document", self.said)
        self.refused(["no document to use", "without a turn of the role assistant"], self.prepared,
                     made.chatty("ChatML", False), {"messages": turns(("user", "a"), ("gpt", "b"))})

    def test_an_answer_that_a_limit_cuts_away_is_told(self):
        rows = [{"messages": turns(("user", "hello " * 50), ("assistant", "yes"))}, {"messages": turns(*CHAT)}]
        self.assertEqual(len(self.prepared(made.chatty("ChatML", False), *rows, max_tokens=40)), 1)
        self.assertIn("without a label after the cut to 40 tokens: 1 document", self.said)

    def test_one_bos(self):
        template = "{{ bos_token }}" + made.template("Llama-3", False)
        document, = self.prepared(made.chatty("Llama-3", False), {"messages": turns(*CHAT)}, chat_template=template)
        self.assertEqual(document.ids.tolist().count(self.theirs.bos_token_id), 1)
        self.assertIn("a BOS token before that of the document itself", self.said)
        self.assertEqual([run.strip() for run in self.runs(document)], [CHAT[1][1] + "<|eot|>", CHAT[3][1] + "<|eot|>"])

    def test_tools(self):
        call = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
        chat = [*turns(("user", "1+1?")), {"role": "assistant", "tool_calls": call}, *turns(("tool", "2"), ("assistant", "two"))]
        tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}]
        for marks in (True, False):
            document, = self.prepared(made.chatty("Mistral", marks), {"messages": chat, "tools": tools})
            calls, answer = self.runs(document)
            self.assertRegex(calls, r"^\[CALL\].*add.*</s>$")
            self.assertEqual(answer, "two</s>")
            self.assertIn("adds", self.theirs.decode(document.ids))
        self.prepared(made.chatty("ChatML", True), {"messages": turns(*CHAT), "tools": tools})
        self.assertIn("chats with tools that the template does not show: 1 chat", self.said)

    def test_calls_of_tools_that_the_template_does_not_show_are_refused(self):
        arguments = {"city": "Bern"}
        for call in ({"tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": arguments}}]},
                     {"tool_calls": [{"name": "weather", "arguments": arguments}]},
                     {"function_call": {"name": "weather", "arguments": '{"city": "Bern"}'}}):
            chat = [*turns(("user", "weather in Bern?")), {"role": "assistant", "content": "a", **call}]
            for marks in (True, False):
                with self.subTest(call, marks=marks):
                    self.refused(["has turn 1", "whose name the chat template does not show"],
                                 lambda: self.prepared(made.chatty("ChatML", marks), {"messages": chat}))
        named = ("{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}{% for c in m.tool_calls or [] %}"
                 "{{ c['function']['name'] }}{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}"
                 "<|im_start|>assistant\n{% endif %}")
        chat = [*turns(("user", "a")), {"role": "assistant", "content": "b", "tool_calls": [
            {"function": {"name": "weather", "arguments": arguments}}]}]
        self.refused("whose arguments the chat template does not show",
                     lambda: self.prepared(made.chatty("ChatML", False), {"messages": chat}, chat_template=named))
        chat[1]["tool_calls"][0]["function"]["arguments"] = {}
        self.prepared(made.chatty("ChatML", False), {"messages": chat}, chat_template=named)

    def test_prompt_and_completion(self):
        for name, tokenizer in (("bpe", made.chatty("ChatML", False)), ("unigram", made.unigram())):
            document, = self.prepared(tokenizer, {"prompt": "what is it?", "completion": " the answer"})
            with self.subTest(name):
                ids = self.theirs("what is it? the answer")["input_ids"] + [self.theirs.eos_token_id]
                self.assertEqual(document.ids.tolist(), ids)
                self.assertEqual([run.strip() for run in self.runs(document)], ["the answer</s>"])
        for marks in (True, False):  # turns of the prompt do not count
            document, = self.prepared(made.chatty("ChatML", marks), {"prompt": turns(*CHAT[:3]), "completion": turns(CHAT[3])})
            self.assertEqual([run.strip() for run in self.runs(document)], [CHAT[3][1] + "<|im_end|>"])
        document, = self.prepared(made.chatty("ChatML", False), {"prompt": "a", "completion": " b"}, loss="all")
        self.assertIsNone(document.mask)

    def test_marks_that_leave_out_the_end_are_told(self):
        template = made.template("ChatML", True).replace("m.content + '<|im_end|>' }}{% endg", "m.content }}{% endg").replace(
            "{% endgeneration %}", "{% endgeneration %}{{ '<|im_end|>' }}")
        document, = self.prepared(made.chatty("ChatML", True), {"messages": turns(*CHAT)}, chat_template=template)
        self.assertEqual(self.runs(document), [CHAT[1][1], CHAT[3][1]])
        self.assertIn("has no special token at its end, so that a model does not learn to end it: 1 chat", self.said)

    def test_content_that_the_template_does_not_show(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}, *turns(("assistant", "yes"))]
        template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        self.refused(["c.jsonl:1", "source text of a list"], self.prepared, made.chatty("ChatML", False), {"messages": parts},
                     chat_template=template)
        lists = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}<|im_end|>{% endfor %}"
        self.refused(["c.jsonl:1", "whose content the chat template does not show", "[{"], self.prepared,
                     made.chatty("ChatML", False), {"messages": turns(*CHAT)}, chat_template=lists)
        dropping = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
        self.prepared(made.chatty("ChatML", False), {"messages": turns(("system", "Be kind."), *CHAT)}, chat_template=dropping)
        self.assertIn("content that the template does not show whole, role system: 1 chat", self.said)
        self.prepared(made.chatty("ChatML", False), {"messages": turns(("user", "say <|im_end|> now"), ("assistant", "ok"))})
        self.assertIn("the text of special tokens in a turn's content, which became those tokens: 1 chat", self.said)

    def test_what_a_template_refuses(self):
        self.refused(["c.jsonl:1", "no system turns", "--chat-template"], self.prepared, made.chatty("Gemma", False),
                     {"messages": turns(("system", "a"), *CHAT)})
        self.refused(["c.jsonl:1", "no chat template"], self.prepared, made.byte_bpe(), {"messages": turns(*CHAT)})
        self.refused(["c.jsonl:1", "begins with a turn of the assistant"], self.prepared, made.chatty("ChatML", False),
                     {"messages": turns(("assistant", "a"))})

    def test_arguments_of_the_template(self):
        template = "{{ 'X' if thinking else 'Y' }}" + made.template("ChatML", True)
        chat = {"messages": turns(*CHAT)}
        for row, args, letter in ((chat, {}, "Y"), (chat, {"thinking": True}, "X"),
                                  ({**chat, "chat_template_kwargs": {"thinking": False}}, {"thinking": True}, "Y")):
            document, = self.prepared(made.chatty("ChatML", True), row, chat_template=template, template_args=args)
            self.assertTrue(self.theirs.decode(document.ids).startswith(letter))

    def test_arguments_that_are_of_transformers(self):
        for marks in (True, False):
            for own in ({"truncation": True, "max_length": 24}, {"add_generation_prompt": True}, {"tools": []},
                        {"chat_template": "x"}, {"tokenizer_kwargs": {"truncation": True, "max_length": 24}}):
                chat, words = {"messages": turns(*CHAT)}, f"has {', '.join(sorted(own))} among the variables"
                with self.subTest(own=own, marks=marks):
                    self.refused(["--template-args: ", words], self.prepared, made.chatty("ChatML", marks), chat,
                                 template_args=own)
                    self.refused(["c.jsonl:1: ", words], self.prepared, made.chatty("ChatML", marks),
                                 {**chat, "chat_template_kwargs": own})
        template = "{{ documents[0].text }}" + made.template("ChatML", True)  # a variable of templates
        document, = self.prepared(made.chatty("ChatML", True), {"messages": turns(*CHAT)}, chat_template=template,
                                  template_args={"documents": [{"title": "Y", "text": "Z"}]})
        self.assertTrue(self.theirs.decode(document.ids).startswith("Z"))


if __name__ == "__main__":
    unittest.main()
