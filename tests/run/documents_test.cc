#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/data.h"
#include "tests/support/corpora.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class Documents : public test::DataTest {
 protected:
  [[nodiscard]] DataOptions options(const std::string& name) const {
    return DataTest::options({name});
  }

  template <class... Parts>
  static void expect_refused(const DataOptions& options, const Parts&... parts) {
    DataTest::expect_refused(options, options.paths.front().string(), parts...);
  }
};

TEST_F(Documents, AFolderGivesItsFilesSortedByPath) {
  write_file("d/b.txt", "B\n");
  write_file("d/a/z.txt", "az");
  write_file("d/a.txt", "\xff");
  write_file("d/empty", "");
  const Corpus corpus = read_corpus(options("d"));
  // '.' sorts before '/'
  EXPECT_THAT(
      names_of(corpus),
      ElementsAre(path("d/a.txt").string(), path("d/a/z.txt").string(), path("d/b.txt").string()));
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(ElementsAre(255), ElementsAre('a', 'z'), ElementsAre('B', '\n')));
  EXPECT_EQ(corpus.counts.documents, 3);
  EXPECT_EQ(corpus.counts.tokens, 5);
  EXPECT_EQ(corpus.counts.skipped_short, 1);
}

TEST_F(Documents, AJsonlFileGivesItsLines) {
  write_file(
      "a.jsonl",
      "{\"tokens\": [3, 1, 2]}\n\n  \t\r\n{\"text\": \"h\\u00e9\", \"id\": 7}\r\n"
      "{\"tokens\": [255], \"text\": \"ignored\"}");  // no newline at the end
  const Corpus corpus = read_corpus(options("a.jsonl"));
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(ElementsAre(3, 1, 2), ElementsAre('h', 0xc3, 0xa9), ElementsAre(255)));
  EXPECT_THAT(
      names_of(corpus),
      ElementsAre(
          path("a.jsonl").string() + ":1",
          path("a.jsonl").string() + ":4",
          path("a.jsonl").string() + ":5"));
  EXPECT_EQ(corpus.counts.documents, 3);
  EXPECT_EQ(corpus.counts.tokens, 7);
}

TEST_F(Documents, BlankLinesAreCounted) {
  std::string lines;
  std::vector<std::string> names;
  std::uint32_t draw = 1;
  for (int number = 1; number <= 300; ++number) {
    draw = draw * 1664525U + 1013904223U;
    if (draw >> 30U == 0) {  // a fourth of them
      lines += "\n";
    } else {
      lines += "{\"tokens\": [1, 2]}\n";
      names.push_back(path("a.jsonl").string() + ":" + std::to_string(number));
    }
  }
  write_file("a.jsonl", lines);
  EXPECT_EQ(names_of(read_corpus(options("a.jsonl"))), names);
}

TEST_F(Documents, TooLongAndTooShort) {
  write_file(
      "a.jsonl",
      "{\"tokens\": []}\n{\"tokens\": [1]}\n{\"tokens\": [1, 2]}\n{\"tokens\": [1, 2, 3]}\n"
      "{\"tokens\": [1, 2, 3, 4]}\n");
  DataOptions limits = options("a.jsonl");
  limits.min_tokens = 2;
  limits.max_tokens = 3;
  Corpus corpus = read_corpus(limits);
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3), ElementsAre(1, 2, 3)));
  EXPECT_EQ(corpus.counts.cut, 1);
  EXPECT_EQ(corpus.counts.skipped_short, 2);
  EXPECT_EQ(corpus.counts.skipped_long, 0);
  EXPECT_EQ(corpus.counts.tokens, 8);

  limits.too_long = TooLong::skip;
  corpus = read_corpus(limits);
  EXPECT_THAT(documents_of(corpus), ElementsAre(ElementsAre(1, 2), ElementsAre(1, 2, 3)));
  EXPECT_EQ(corpus.counts.cut, 0);
  EXPECT_EQ(corpus.counts.skipped_long, 1);
  EXPECT_EQ(corpus.counts.documents, 2);

  limits.too_long = TooLong::refuse;
  expect_refused(limits, "a.jsonl:5", "4 tokens", "the 3 allowed", "cut or skipped");
  limits.max_tokens = 4;
  EXPECT_EQ(read_corpus(limits).counts.documents, 3);
  limits.max_tokens = 0;  // no limit
  EXPECT_EQ(read_corpus(limits).counts.documents, 3);
  limits.min_tokens = 0;
  EXPECT_EQ(read_corpus(limits).counts.documents, 5);

  limits.min_tokens = 9;
  expect_refused(limits, "no document", "5 were shorter than 9");
}

// A masked LM: a label for every token, -100 where there is none; both are cut alike.
TEST_F(Documents, LabelsComeWithTheTokens) {
  write_file(
      "d.jsonl",
      R"({"tokens": [1, 2, 3], "labels": [-100, 5, -100], "other": 1})"
      "\n"
      R"({"tokens": [4], "labels": [0]})");
  DataOptions masked = options("d.jsonl");
  masked.vocab = 6;
  masked.labels = true;
  const Corpus corpus = read_corpus(masked);
  EXPECT_THAT(documents_of(corpus), ElementsAre(ElementsAre(1, 2, 3), ElementsAre(4)));
  EXPECT_THAT(labels_of(corpus), ElementsAre(ElementsAre(kNoLabel, 5, kNoLabel), ElementsAre(0)));
  masked.max_tokens = 2;
  EXPECT_THAT(
      labels_of(read_corpus(masked)), ElementsAre(ElementsAre(kNoLabel, 5), ElementsAre(0)));
  for (const auto& [line, part] :
       {std::pair{R"({"tokens": [1, 2], "labels": [1]})", "2 tokens and 1 labels"},
        std::pair{R"({"tokens": [1]})", "tokens and labels"},
        std::pair{R"({"text": "a", "labels": [1]})", "tokens and labels"},
        std::pair{R"({"tokens": [1], "labels": [6]})", "label 0 is 6"},
        std::pair{R"({"tokens": [1], "labels": [-1]})", "label 0 is -1"},
        std::pair{R"({"tokens": [-100], "labels": [1]})", "token 0 is -100"},
        std::pair{R"({"tokens": [1], "labels": 1})", "labels is 1"}}) {
    write_file("bad.jsonl", line);
    DataOptions bad = masked;
    bad.paths = {path("bad.jsonl")};
    expect_refused(bad, "bad.jsonl:1", part);
  }
  write_file("folder/a.txt", "text");
  DataOptions folder = masked;
  folder.paths = {path("folder")};
  expect_refused(folder, "masked tokens", ".jsonl");
}

// A causal model takes them where they are; a line without, before or after, predicts itself.
TEST_F(Documents, LabelsMayComeWithTheTokens) {
  write_file(
      "d.jsonl",
      R"({"tokens": [9, 8]})"
      "\n"
      R"({"tokens": [1, 2, 3], "labels": [-100, 5, -100], "text": "ignored"})"
      "\n"
      R"({"text": "abc", "label": 7})"
      "\n"
      R"({"tokens": [], "labels": []})");
  DataOptions causal = options("d.jsonl");
  causal.min_tokens = 0;
  causal.max_tokens = 2;
  const Corpus corpus = read_corpus(causal);
  EXPECT_THAT(
      documents_of(corpus),
      ElementsAre(ElementsAre(9, 8), ElementsAre(1, 2), ElementsAre('a', 'b'), ElementsAre()));
  EXPECT_THAT(
      labels_of(corpus),
      ElementsAre(
          ElementsAre(9, 8), ElementsAre(kNoLabel, 5), ElementsAre('a', 'b'), ElementsAre()));

  causal.min_tokens = 2;  // what is skipped takes its labels along
  causal.max_tokens = 0;
  write_file(
      "d.jsonl",
      R"({"tokens": [9], "labels": [9]})"
      "\n"
      R"({"tokens": [1, 2], "labels": [3, 4]})");
  EXPECT_THAT(labels_of(read_corpus(causal)), ElementsAre(ElementsAre(3, 4)));

  write_file("d.jsonl", R"({"tokens": [1, 2]})");
  EXPECT_TRUE(labels_of(read_corpus(causal)).empty());
  for (const auto& [line, part] :
       {std::pair{R"({"tokens": [1, 2], "labels": [1]})", "2 tokens and 1 labels"},
        std::pair{R"({"text": "ab", "labels": [1, 2]})", "labels but no tokens"},
        std::pair{R"({"tokens": [1, 2], "labels": [1, 256]})", "label 1 is 256"},
        std::pair{R"({"tokens": [1, 2], "labels": [1, -1]})", "label 1 is -1"},
        std::pair{R"({"tokens": [1, 2], "labels": 1})", "labels is 1"}}) {
    write_file("d.jsonl", line);
    expect_refused(causal, "d.jsonl:1", part);
  }
}

TEST_F(Documents, RefusesWhatIsNotThere) {
  expect_refused(options("none"), "is not there", "folder of text files or a .jsonl file");
  expect_refused(options("none.jsonl"), "is not there");
  fs::create_directories(path("d/e"));
  expect_refused(options("d"), "no document");
  write_file("a.jsonl", "\n\n");
  expect_refused(options("a.jsonl"), "no document");
}

TEST_F(Documents, RefusesLinesThatAreNoDocument) {
  const auto refused = [&](const std::string& line, const auto&... parts) {
    SCOPED_TRACE(line.substr(0, 100));
    write_file("a.jsonl", "{\"tokens\": [1]}\n\n" + line + "\n{\"tokens\": [1]}\n");
    expect_refused(options("a.jsonl"), "a.jsonl:3", parts...);
  };
  refused("hello", "not JSON");
  refused("{\"tokens\": [1]", "not JSON");
  refused("{\"tokens\": [1]} {}", "not JSON");
  refused("{\"text\": \"\xff\"}", "UTF-8");
  refused("{\"tokens\": [1e999]}", "not JSON");
  refused("[1, 2]", "tokens (ids) or text");
  refused("5", "tokens (ids) or text");
  refused("{\"token\": 1}", "{\"token\":1}", "tokens (ids) or text");
  refused("{\"tokens\": 5}", "tokens is 5", "list of ids");
  refused("{\"text\": [5]}", "text is [5]", "string");
  refused("{\"tokens\": [1, -1]}", "token 1 is -1", "0 to 255");
  refused("{\"tokens\": [256]}", "token 0 is 256", "0 to 255");
  refused("{\"tokens\": [1.0]}", "token 0 is 1.0", "whole number");
  refused("{\"tokens\": [\"1\"]}", "token 0 is \"1\"");
  refused("{\"tokens\": [true]}", "token 0 is true");
  refused("{\"tokens\": [null]}", "token 0 is null");
  refused("{\"tokens\": [18446744073709551615]}", "18446744073709551615");
  refused("{\"tokens\": [4294967296]}", "4294967296");
  refused("{\"tokens\": [99999999999999999999]}", "whole number");
  const std::string brackets(1'000'000, '[');
  const std::string closed = brackets + std::string(brackets.size(), ']');
  refused("{\"tokens\": " + brackets, "not JSON");
  refused("{\"tokens\": [" + closed + "]}", "token 0 is a nested array");
  refused(closed, "nested array");
}

TEST_F(Documents, NullColumnsCountAsAbsent) {
  write_file(
      "a.jsonl",
      R"({"tokens": [1, 2], "labels": [1, 2], "text": null, "attention_mask": null, "id": null})"
      "\n"
      R"({"tokens": null, "input_ids": null, "labels": null, "text": "ab"})"
      "\n"
      R"({"tokens": [3], "labels": null, "loss_mask": null, "position_ids": null})");
  const Corpus corpus = read_corpus(options("a.jsonl"));
  EXPECT_THAT(
      documents_of(corpus), ElementsAre(ElementsAre(1, 2), ElementsAre('a', 'b'), ElementsAre(3)));
  EXPECT_THAT(
      labels_of(corpus), ElementsAre(ElementsAre(1, 2), ElementsAre('a', 'b'), ElementsAre(3)));
  EXPECT_THAT(corpus.counts.unused_keys, IsEmpty());
  write_file("a.jsonl", R"({"tokens": null, "text": null})");
  expect_refused(options("a.jsonl"), "a.jsonl:1", "tokens (ids) or text");
}

// What parsers refuse or misread in another's file, named as what it is.
TEST_F(Documents, DamagedLinesAreNamed) {
  const auto refused = [&](const std::string& line, const auto&... parts) {
    SCOPED_TRACE(line);
    write_file("a.jsonl", "{\"tokens\": [1]}\n" + line + "\n");
    expect_refused(options("a.jsonl"), "a.jsonl:2", parts...);
  };
  using namespace std::string_literals;
  refused("{\"tokens\": [1]}\0{\"tokens\": [2]}"s, "NUL byte", "byte 15");
  refused("\0"s, "NUL byte");
  refused("{\"tokens\": [1, 2]\0}"s, "NUL byte");
  refused("{\"text\": \"a\0b\"}"s, "NUL byte");
  refused("{\"tokens\": [1]}\0\0\0\0"s, "NUL byte");
  refused(R"({"text": "cut \ud83d here"})", "\\ud83d", "half of a surrogate pair");
  refused(R"({"text": "cut \uDE00"})", "\\uDE00", "half of a surrogate pair");
  refused(R"({"text": "\ud83d\ud83d\ude00"})", "\\ud83d", "half of a surrogate pair");
  refused(R"({"text": "a", "title": "\ud83d"})", "half of a surrogate pair");
  refused("{\"text\": \"\xed\xa0\xbd\"}", "half of a surrogate pair");
  refused("{\"text\": \"caf\xe9\"}", "UTF-8");
  refused(R"({"tokens": [1], "score": NaN})", "NaN", "null");
  refused(R"({"tokens": [1], "score": -Infinity})", "Infinity", "null");
  refused(R"({"tokens": [1], "tokens": [2]})", "'tokens' appears twice");
  refused(R"({"tokens": [1], "id": 1, "id": 2})", "'id' appears twice");
  refused(R"({"tokens": [1]}, {"tokens": [2]})", "not JSON");
  refused(R"({"tokens": [1, 2], "input_ids": [1, 3]})", "tokens and input_ids, which differ");
  refused(R"({"tokens": [1, 2.0]})", "token 1 is 2.0");
  refused(R"({"tokens": ["the", "fox"]})", "token 0 is \"the\"");

  // whole pairs, escaped backslashes, and the same key further in are right
  write_file(
      "a.jsonl",
      "\xef\xbb\xbf{\"text\": \"\\ud83d\\ude00\"}\r\n"
      "{\"text\": \"\\\\ud83d\", \"meta\": {\"a\": 1, \"b\": {\"a\": 2}}}\r\n");
  EXPECT_THAT(
      documents_of(read_corpus(options("a.jsonl"))),
      ElementsAre(ElementsAre(0xf0, 0x9f, 0x98, 0x80), ElementsAre('\\', 'u', 'd', '8', '3', 'd')));
}

// Keys that Transformers and TRL know, taken as they do.
TEST_F(Documents, KeysThatMeanSomethingAreUsed) {
  struct Case {
    std::string line;
    Tokens tokens;
    Tokens labels;
    std::int64_t padding = 0;
  };
  constexpr std::int32_t kNone = kNoLabel;
  for (const Case& one : std::vector<Case>{
           {R"({"input_ids": [1, 2, 3]})", {1, 2, 3}, {1, 2, 3}},
           {R"({"input_ids": [1, 2], "tokens": [1, 2]})", {1, 2}, {1, 2}},
           {R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]})", {1, 2, 3}, {kNone, 2, 3}},
           {R"({"tokens": [1, 2, 3], "attention_mask": [1, 1, 1]})", {1, 2, 3}, {1, 2, 3}},
           {R"({"tokens": [1, 2, 0, 0], "attention_mask": [1, 1, 0, 0]})", {1, 2}, {1, 2}, 2},
           {R"({"tokens": [0, 0, 1, 2], "attention_mask": [0, 0, 1, 1]})", {1, 2}, {1, 2}, 2},
           {R"({"tokens": [0, 1, 2, 0], "attention_mask": [false, true, true, false],
               "labels": [9, 8, 7, 6]})",
            {1, 2},
            {8, 7},
            2},
           {R"({"tokens": [0, 1, 2], "attention_mask": [0, 1, 1], "position_ids": [1, 0, 1]})",
            {1, 2},
            {1, 2},
            1},
           {R"({"tokens": [1, 2, 3], "loss_mask": [0, 1, 1]})", {1, 2, 3}, {kNone, 2, 3}},
           {R"({"tokens": [1, 2, 3], "completion_mask": [0, 0, 1]})", {1, 2, 3}, {kNone, kNone, 3}},
           {R"({"tokens": [1, 2, 3], "assistant_masks": [false, true, false]})",
            {1, 2, 3},
            {kNone, 2, kNone}},
           {R"({"tokens": [1, 2, 3], "response_mask": [1, 1, 0], "completion_mask": [0, 1, 1],
               "labels": [4, 5, 6]})",
            {1, 2, 3},
            {kNone, 5, kNone}},
           {R"({"tokens": [1, 2, 3], "position_ids": [0, 1, 2]})", {1, 2, 3}, {1, 2, 3}},
           {R"({"tokens": [1, 2], "token_type_ids": [0, 0]})", {1, 2}, {1, 2}},
           {R"({"tokens": [1, 2], "weight": 1, "loss_weights": [1, 1.0]})", {1, 2}, {1, 2}},
           {R"({"tokens": [1, 2], "decoder_input_ids": [], "mask": false, "segment_ids": null})",
            {1, 2},
            {1, 2}},
           {R"({"tokens": [1, 2], "special_tokens_mask": [1, 0]})", {1, 2}, {1, 2}},
       }) {
    SCOPED_TRACE(one.line);
    std::string line = one.line;
    std::ranges::replace(line, '\n', ' ');
    write_file("a.jsonl", line + "\n" + R"({"tokens": [5], "labels": [5]})");
    const Corpus corpus = read_corpus(options("a.jsonl"));
    EXPECT_EQ(documents_of(corpus).front(), one.tokens);
    EXPECT_EQ(labels_of(corpus).front(), one.labels);
    EXPECT_EQ(corpus.counts.padding, one.padding);
  }
}

TEST_F(Documents, KeysThatWouldChangeTheMeaningAreRefusedByName) {
  const auto refused = [&](const std::string& line, const auto&... parts) {
    SCOPED_TRACE(line);
    write_file("a.jsonl", "{\"tokens\": [1]}\n" + line + "\n");
    expect_refused(options("a.jsonl"), "a.jsonl:2", parts...);
  };
  refused(R"({"tokens": [1, 2, 3], "attention_mask": [1, 0, 1]})", "attention_mask");
  refused(R"({"tokens": [1, 2], "attention_mask": [0, 0]})", "attention_mask", "all 0");
  refused(R"({"tokens": [1, 2], "attention_mask": [1]})", "attention_mask is [1]", "2 tokens");
  refused(R"({"tokens": [1, 2], "attention_mask": [1, 2]})", "attention_mask is [1,2]");
  refused(R"({"tokens": [1, 2], "attention_mask": [[1, 0], [1, 1]]})", "attention_mask");
  refused(R"({"tokens": [1, 2], "attention_mask": [1.0, 0.0]})", "attention_mask is [1.0,0.0]");
  refused(R"({"tokens": [1, 2], "loss_mask": [1]})", "loss_mask");
  refused(R"({"tokens": [1, 2], "loss_mask": [0.5, 1]})", "loss_mask");
  refused(R"({"tokens": [1, 2], "completion_mask": "all"})", "completion_mask");
  refused(R"({"tokens": [1, 2], "prompt_mask": [1, 0]})", "prompt_mask");
  refused(R"({"tokens": [1, 2], "position_ids": [0, 0]})", "position_ids is [0,0]");
  refused(R"({"tokens": [1, 2], "position_ids": [1, 2]})", "position_ids");
  refused(R"({"tokens": [1, 2], "position_ids": [0]})", "position_ids");
  refused(
      R"({"tokens": [0, 1, 2], "attention_mask": [0, 1, 1], "position_ids": [0, 1, 2]})",
      "position_ids");
  refused(R"({"tokens": [1, 2], "token_type_ids": [0, 1]})", "token_type_ids");
  refused(R"({"tokens": [1, 2], "segment_ids": [1, 2]})", "segment_ids");
  refused(R"({"tokens": [1, 2], "label": [-100, 2]})", "label is [-100,2]", "\"labels\"");
  refused(R"({"tokens": [1, 2], "label_ids": [1, 2]})", "label_ids", "\"labels\"");
  refused(R"({"tokens": [1, 2], "targets": [2, 3]})", "targets", "\"labels\"");
  refused(R"({"text": "ab", "Labels": [1, 2]})", "Labels", "\"labels\"");
  refused(R"({"tokens": [1, 2], "weight": 0.5})", "weight is 0.5");
  refused(R"({"tokens": [1, 2], "loss_weights": [1, 0.5]})", "loss_weights");
  refused(R"({"tokens": [1, 2], "decoder_input_ids": [1, 2]})", "decoder_input_ids");
  refused(R"({"tokens": [1, 2], "inputs_embeds": [[1.0]]})", "inputs_embeds");
  refused(R"({"tokens": [1, 2], "cu_seqlens": [0, 1, 2]})", "cu_seqlens");
  refused(R"({"tokens": [1, 2], "seq_lengths": [1, 1]})", "seq_lengths");
  refused(R"({"text": "ab", "attention_mask": [1, 1]})", "attention_mask");
  refused(R"({"text": "ab", "loss_mask": [1, 0]})", "loss_mask");
  refused(R"({"messages": [{"role": "user", "content": "hi"}]})", "messages", "chat template");
  refused(R"({"prompt": "a", "completion": "b"})", "prompt", "-100 for the prompt");

  // Padding before the tokens moves learned positions, unless position_ids say it does not.
  write_file("a.jsonl", R"({"tokens": [0, 1, 2], "attention_mask": [0, 1, 1]})");
  DataOptions learned = options("a.jsonl");
  learned.learned_positions = true;
  expect_refused(learned, "a.jsonl:1", "attention_mask", "learned positions");
  write_file(
      "a.jsonl",
      R"({"tokens": [0, 1, 2], "attention_mask": [0, 1, 1], "position_ids": [0, 0, 1]})");
  EXPECT_THAT(documents_of(read_corpus(learned)), ElementsAre(ElementsAre(1, 2)));
}

TEST_F(Documents, KeysOfDataAboutDataAreNamedOnce) {
  write_file(
      "a.jsonl",
      R"({"id": 7, "tokens": [1, 2], "url": "x", "label": 3, "text": "also as text"})"
      "\n"
      R"({"text": "ab", "meta": {"labels": [1]}, "id": 8, "label_names": ["a"], "lang": null})");
  EXPECT_THAT(
      read_corpus(options("a.jsonl")).counts.unused_keys,
      ElementsAre("id", "url", "label", "text", "meta", "label_names"));
}

TEST_F(Documents, TextForAModelWithATokenizerIsRefused) {
  write_file("a.jsonl", "{\"tokens\": [1]}\n{\"text\": \"a\"}");
  write_file("d/a.txt", "a");
  for (const char* const name : {"a.jsonl", "d", "d/a.txt"}) {
    DataOptions text = options(name);
    EXPECT_NO_THROW((void)read_corpus(text));
    text.tokenizer = "tokenizer.json";
    expect_refused(text, "has a tokenizer (tokenizer.json)", "--bytes", "data.bytes = true");
  }
  write_file("a.jsonl", R"({"tokens": [1], "text": "beside them"})");
  DataOptions ids = options("a.jsonl");
  ids.tokenizer = "tokenizer.json";
  EXPECT_THAT(documents_of(read_corpus(ids)), ElementsAre(ElementsAre(1)));
}

TEST_F(Documents, AnEndIdFollowsTextAlone) {
  write_file("a.jsonl", "{\"tokens\": [1]}\n{\"text\": \"ab\"}\n{\"text\": \"\"}");
  DataOptions with_end = options("a.jsonl");
  with_end.min_tokens = 0;
  with_end.end_id = 200;
  const Corpus corpus = read_corpus(with_end);
  EXPECT_THAT(
      documents_of(corpus), ElementsAre(ElementsAre(1), ElementsAre('a', 'b', 200), ElementsAre()));
  EXPECT_EQ(corpus.counts.end_id, 200);
  EXPECT_EQ(corpus.counts.texts, 2);
  write_file("a.jsonl", "{\"tokens\": [1]}");
  EXPECT_EQ(read_corpus(with_end).counts.end_id, std::nullopt);
}

TEST_F(Documents, WhatIsCutIsCounted) {
  write_file(
      "a.jsonl",
      R"({"tokens": [1, 2, 3, 4, 5]})"
      "\n"
      R"({"tokens": [1, 2, 3, 4], "labels": [-100, -100, -100, 4]})"
      "\n"
      R"({"tokens": [1, 2, 3, 4], "labels": [1, -100, -100, -100]})"
      "\n"
      R"({"tokens": [1, 2]})"
      "\n"
      R"({"tokens": [1]})");
  DataOptions limits = options("a.jsonl");
  limits.min_tokens = 2;
  limits.max_tokens = 3;
  DataCounts counts = read_corpus(limits).counts;
  EXPECT_EQ(counts.documents, 4);
  EXPECT_EQ(counts.tokens, 11);
  EXPECT_EQ(counts.labels, 3);  // the first of a document is never scored
  EXPECT_EQ(counts.cut, 3);
  EXPECT_EQ(counts.cut_tokens, 4);
  EXPECT_EQ(counts.cut_labels, 3);
  EXPECT_EQ(counts.unlabelled, 1);  // the third had none before
  EXPECT_EQ(counts.skipped_short_tokens, 1);

  limits.too_long = TooLong::skip;
  counts = read_corpus(limits).counts;
  EXPECT_EQ(counts.skipped_long, 3);
  EXPECT_EQ(counts.skipped_long_tokens, 13);

  limits.max_tokens = 0;
  limits.window = 4;
  counts = read_corpus(limits).counts;
  EXPECT_EQ(counts.beyond_window, 1);
  EXPECT_EQ(counts.tokens, 15);
}

// The labels of a causal model that are scored, each as (the tokens before it, label).
std::vector<std::pair<std::int32_t, std::int32_t>> scored_labels(const Corpus& corpus) {
  std::vector<std::pair<std::int32_t, std::int32_t>> all;
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    const Document document = corpus.document(d);
    const Tokens& tokens = document.tokens;
    const Tokens& labels = document.labels.value_or(tokens);
    for (std::size_t i = 1; i < tokens.size(); ++i) {
      if (labels[i] != kNoLabel) {
        all.emplace_back(tokens[i - 1], labels[i]);
      }
    }
  }
  return all;
}

// Whatever the limit: as many labels are scored, after the same token, as of the whole documents.
TEST_F(Documents, PiecesScoreEveryLabelOnce) {
  write_file(
      "a.jsonl",
      R"({"tokens": [1, 2, 3, 4, 5, 6, 7]})"
      "\n"
      R"({"tokens": [11, 12, 13, 14], "labels": [-100, 22, -100, 24]})"
      "\n"
      R"({"tokens": [31, 32]})");
  DataOptions split = options("a.jsonl");
  split.min_tokens = 2;
  const auto whole = scored_labels(read_corpus(split));
  split.too_long = TooLong::split;
  for (std::int64_t most = 2; most < 9; ++most) {
    SCOPED_TRACE(most);
    split.max_tokens = most;
    const Corpus pieces = read_corpus(split);
    EXPECT_EQ(scored_labels(pieces), whole);
    EXPECT_EQ(pieces.counts.labels, std::ssize(whole));
    for (const Tokens& piece : documents_of(pieces)) {
      EXPECT_LE(std::ssize(piece), most);
      EXPECT_GE(std::ssize(piece), 2);
    }
  }
  split.max_tokens = 4;
  const Corpus pieces = read_corpus(split);
  EXPECT_THAT(
      documents_of(pieces),
      ElementsAre(
          ElementsAre(1, 2, 3, 4),
          ElementsAre(4, 5, 6, 7),
          ElementsAre(11, 12, 13, 14),
          ElementsAre(31, 32)));
  EXPECT_EQ(pieces.counts.split, 1);
  EXPECT_EQ(pieces.counts.pieces, 2);
  EXPECT_THAT(names_of(pieces)[1], HasSubstr("a.jsonl:1, from token 3"));
  split.max_tokens = 1;
  EXPECT_THROW((void)read_corpus(split), std::runtime_error);

  // Labels of a masked LM stand at their own tokens: its pieces share none.
  write_file("a.jsonl", R"({"tokens": [1, 2, 3, 4, 5], "labels": [1, -100, 3, -100, 5]})");
  split.labels = true;
  split.max_tokens = 2;
  split.min_tokens = 1;
  const Corpus masked = read_corpus(split);
  EXPECT_THAT(
      documents_of(masked), ElementsAre(ElementsAre(1, 2), ElementsAre(3, 4), ElementsAre(5)));
  EXPECT_THAT(
      labels_of(masked),
      ElementsAre(ElementsAre(1, kNoLabel), ElementsAre(3, kNoLabel), ElementsAre(5)));
  EXPECT_EQ(masked.counts.labels, 3);
}

TEST_F(Documents, IdsAreBelowTheVocabulary) {
  write_file("a.jsonl", "{\"tokens\": [9]}");
  DataOptions few = options("a.jsonl");
  few.vocab = 10;
  EXPECT_THAT(documents_of(read_corpus(few)), ElementsAre(ElementsAre(9)));
  few.vocab = 9;
  expect_refused(few, "a.jsonl:1", "0 to 8");

  write_file("a.jsonl", "{\"text\": \"a\"}");
  expect_refused(few, "a.jsonl:1", "vocabulary has 9 ids", "256");
  write_file("d/a.txt", "a");
  few.paths = {path("d")};
  expect_refused(few, "a.txt", "vocabulary has 9 ids", "256");

  write_file("a.jsonl", "{\"tokens\": [2147483647]}");
  DataOptions many = options("a.jsonl");
  many.vocab = std::numeric_limits<std::int64_t>::max();
  expect_refused(many, "2147483647");  // an id is 32 bits wide
}

// Every epoch of `order` has every document once; the last may be cut.
void expect_epochs(const std::vector<std::int64_t>& order, std::int64_t documents) {
  const auto n = static_cast<std::size_t>(documents);
  for (std::size_t begin = 0; begin < order.size(); begin += n) {
    const std::size_t end = std::min(begin + n, order.size());
    std::vector<std::int64_t> epoch(
        order.begin() + static_cast<std::ptrdiff_t>(begin),
        order.begin() + static_cast<std::ptrdiff_t>(end));
    std::sort(epoch.begin(), epoch.end());
    EXPECT_EQ(std::adjacent_find(epoch.begin(), epoch.end()), epoch.end()) << "drawn twice";
    EXPECT_TRUE(epoch.empty() || (epoch.front() >= 0 && epoch.back() < documents));
  }
}

TEST(DocumentOrder, ShuffledEpochsArePermutations) {
  for (const std::int64_t n : {1, 2, 7, 100}) {
    const std::vector<std::int64_t> lengths(static_cast<std::size_t>(n), 5);
    for (const std::int64_t count : {std::int64_t{0}, n - 1, n, n + 1, 5 * n}) {
      const auto order = document_order(lengths, Order::shuffled, count, 3);
      ASSERT_EQ(order.size(), static_cast<std::size_t>(count));
      expect_epochs(order, n);
      EXPECT_EQ(document_order(lengths, Order::shuffled, count, 3), order) << "not repeatable";
      // A shorter run sees the beginning of a longer one.
      auto longer = document_order(lengths, Order::shuffled, count + 3, 3);
      longer.resize(order.size());
      EXPECT_EQ(longer, order);
    }
  }
  const std::vector<std::int64_t> lengths(50, 5);
  const auto order = document_order(lengths, Order::shuffled, 100, 3);
  EXPECT_NE(order, document_order(lengths, Order::shuffled, 100, 4));
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 50, order.begin() + 50)) << "epochs alike";
}

// Made by another implementation (MT19937-64 and Fisher-Yates in Python).
TEST(DocumentOrder, IsTheSameEverywhere) {
  const std::vector<std::int64_t> lengths(8, 1);
  EXPECT_THAT(
      document_order(lengths, Order::shuffled, 12, 0),
      ElementsAre(4, 5, 2, 0, 7, 1, 3, 6, 4, 3, 1, 7));
}

// Every permutation is as likely: 6 of 3 documents, over many seeds.
TEST(DocumentOrder, ShufflesEvenly) {
  constexpr int kSeeds = 6000;
  std::vector<int> seen(9, 0);  // [position * 3 + document]
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto order = document_order({1, 1, 1}, Order::shuffled, 3, seed);
    for (std::size_t i = 0; i < 3; ++i) {
      ++seen[i * 3 + static_cast<std::size_t>(order[i])];
    }
  }
  for (const int count : seen) {
    EXPECT_NEAR(count, kSeeds / 3, 5 * std::sqrt(kSeeds * 2.0 / 9));  // 5 standard deviations
  }
}

TEST(DocumentOrder, SortedGoesShortToLongInEveryEpoch) {
  EXPECT_THAT(
      document_order({5, 1, 9, 1, 5}, Order::sorted, 12, 7),
      ElementsAre(1, 3, 0, 4, 2, 1, 3, 0, 4, 2, 1, 3));
}

TEST(DocumentOrder, CurriculumSortsTheBeginningOfShuffled) {
  std::vector<std::int64_t> lengths(20);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<std::int64_t>(i * 7 % 13);
  }
  const auto shuffled = document_order(lengths, Order::shuffled, 50, 11);
  for (const auto& [share, first] : std::vector<std::pair<double, std::ptrdiff_t>>{
           {0.0, 0}, {0.3, 15}, {0.5, 25}, {0.99, 50}, {1.0, 50}}) {
    const auto order = document_order(lengths, Order::curriculum, 50, 11, share);
    EXPECT_TRUE(std::is_sorted(
        order.begin(),
        order.begin() + first,
        [&](std::int64_t a, std::int64_t b) {
          return lengths[static_cast<std::size_t>(a)] < lengths[static_cast<std::size_t>(b)];
        }))
        << share;
    EXPECT_TRUE(std::is_permutation(order.begin(), order.begin() + first, shuffled.begin()));
    EXPECT_TRUE(std::equal(order.begin() + first, order.end(), shuffled.begin() + first)) << share;
  }
}

TEST(DocumentOrder, RefusesWhatCannotBeDrawn) {
  EXPECT_TRUE(document_order({}, Order::shuffled, 0, 1).empty());
  EXPECT_TRUE(document_order({}, Order::sorted, 0, 1).empty());
  EXPECT_THROW(document_order({}, Order::sorted, 1, 1), std::invalid_argument);
  EXPECT_THROW(document_order({4}, Order::sorted, -1, 1), std::invalid_argument);
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    EXPECT_THROW(document_order({4}, Order::curriculum, 1, 1, share), std::invalid_argument);
  }
}

}  // namespace
}  // namespace paradyse
