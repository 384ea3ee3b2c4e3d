// Which files of a folder, a list or a pattern are taken, and what is told of the others.
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "paradyse/run/data.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/data/data_report.h"
#include "src/run/data/evoformer/alignment.h"
#include "src/run/data/tokenizer_files.h"
#include "src/run/train/run_inputs.h"
#include "tests/support/corpora.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class DataFilesTest : public test::DataTest {
 protected:
  // The documents of these paths, as text; ids below 10 as digits.
  [[nodiscard]] std::vector<std::string> documents(const std::vector<std::string>& names) const {
    return texts(read_corpus(options(names)));
  }

  static std::vector<std::string> texts(const Corpus& corpus) {
    std::vector<std::string> all;
    for (const Tokens& tokens : documents_of(corpus)) {
      std::string& text = all.emplace_back();
      for (const std::int32_t id : tokens) {
        text += static_cast<char>(id < 10 ? '0' + id : id);
      }
    }
    return all;
  }

  template <class... Parts>
  void expect_refused(const std::vector<std::string>& names, const Parts&... parts) const {
    DataTest::expect_refused(options(names), parts...);
  }
};

std::string files_left_out(const Corpus& corpus) {
  return json_of(corpus.counts)["files_left_out"].dump();
}

TEST_F(DataFilesTest, WhatNobodyMeansIsLeftOutAndCounted) {
  using namespace std::string_literals;
  write_file("d/a.txt", "a");
  write_file("d/code.py", "b");
  write_file("d/sub/notes", "c");
  write_file("d/.DS_Store", "no");
  write_file("d/.git/HEAD", "no");
  write_file("d/.git/objects/x.txt", "no");
  write_file("d/sub/.hidden.txt", "no");
  write_file("d/picture.png", "\x89PNG\r\n\x1a\n");
  write_file("d/photo.jpg", "\xff\xd8\xff\xe0 text");
  write_file("d/paper.pdf", "%PDF-1.4");
  write_file("d/model.bin", "ab\0cd"s);
  write_file("d/noise", "\x01\x02\x03\xff\xfe\x04\x05\xc0");
  write_file("d/backup.tar.gz", "\x1f\x8b\x08");
  write_file(
      "d/utf16.cs",
      "\xff\xfe"
      "a\0"s);
  ASSERT_EQ(mkfifo(path("d/pipe").c_str(), 0600), 0);
  const Corpus corpus = read_corpus(options({"d"}));
  EXPECT_THAT(texts(corpus), ElementsAre("a", "b", "c"));
  EXPECT_EQ(files_left_out(corpus), R"({"binary":7,"hidden":3,"pipe or socket":1})");
  const std::string line = data_lines(corpus.counts).front();
  EXPECT_THAT(
      line,
      AllOf(
          HasSubstr("data: 3 documents, 3 tokens from 3 text files, bytes of text as tokens"),
          HasSubstr("files left out: 7 binary ("),
          HasSubstr("3 hidden (.")));
}

TEST_F(DataFilesTest, OtherEncodingsAreText) {
  write_file(
      "d/latin1",
      "caf\xe9 cr\xe8me\n\tbr\xfbl\xe9"
      "e\f\x1b[0m");
  write_file("d/mark", "\xef\xbb\xbfmark");
  write_file("d/utf8", "caf\xc3\xa9 \xf0\x9f\x98\x80");
  const Corpus corpus = read_corpus(options({"d"}));
  EXPECT_EQ(corpus.counts.documents, 3);
  EXPECT_THAT(corpus.counts.left_out, IsEmpty());
  EXPECT_EQ(documents_of(corpus)[1].size(), 7U);  // bytes are bytes
}

TEST_F(DataFilesTest, FilesMeantAsTextThatAreNoneAreRefused) {
  using namespace std::string_literals;
  const auto refused =
      [&](const std::string& name, const std::string& bytes, const auto&... parts) {
        SCOPED_TRACE(name);
        write_file("d/" + name, bytes);
        expect_refused({"d/" + name}, name, parts...);
        if (name.ends_with(".txt") || name.ends_with("l")) {
          expect_refused({"d"}, name, parts...);
        }
        fs::remove(path("d/" + name));
      };
  refused("hole.txt", "ab\0\0cd"s, "NUL byte (byte 2)");
  refused("code.py", "ab\0cd"s, "NUL byte (byte 2)");
  refused(
      "wide.txt",
      "\xff\xfe"
      "a\0b\0"s,
      "UTF-16",
      "iconv");
  refused("wide.TXT", "\xfe\xff\0a"s, "UTF-16");
  refused("wide.jsonl", "\xff\xfe{\0"s, "UTF-16", "iconv");
  refused("packed.jsonl", "\x1f\x8b\x08"s, "compressed");
  refused("packed.txt", "\x28\xb5\x2f\xfdzzz", "compressed");
  refused("picture.png", "\x89PNG\r\n", "picture");
  refused("table.jsonl", "PAR1", "Parquet");
}

TEST_F(DataFilesTest, DataThatIsNotReadIsRefusedWithTheRemedy) {
  write_file("d/a.txt", "a");
  for (const auto& [name, part] :
       {std::pair{"train-00000-of-00001.parquet", "JSONL"},
        std::pair{"data.arrow", "JSONL"},
        std::pair{"part.feather", "JSONL"},
        std::pair{"shard.jsonl.gz", "gunzip"},
        std::pair{"shard.json.zst", "zstd -d"},
        std::pair{"book.txt.xz", "unxz"},
        std::pair{"list.json", "jq -c '.[]'"}}) {
    SCOPED_TRACE(name);
    const std::string in_folder = std::string("d/") + name;
    write_file(in_folder, R"([ {"id": 1, "text": "a"} ])");
    expect_refused({"d"}, name, part);
    expect_refused({in_folder}, name, part);
    fs::remove(path(in_folder));
  }
  for (const auto& [name, part] :
       {std::pair{"books.zip", "unzip"},
        std::pair{"books.gz", "gunzip"},
        std::pair{"table.csv", "JSONL"},
        std::pair{"rows.tsv", "JSONL"},
        std::pair{"package.json", "holds no documents"}}) {  // in a folder they may be anything
    SCOPED_TRACE(name);
    write_file(std::string("e/") + name, "{\n\"name\": 1}");
    expect_refused({std::string("e/") + name}, name, part);
  }
  EXPECT_EQ(read_corpus(options({"d"})).counts.documents, 1);
}

// Beside text they are left out and counted, whatever they hold.
TEST_F(DataFilesTest, BinaryFormatsAreRefusedByTheirOwnNames) {
  using namespace std::string_literals;
  write_file("f/a.txt", "a");
  int files = 0;
  for (const auto& [name, part] :
       {std::pair{"corpus_text_document.bin", "Megatron"},
        std::pair{"corpus_text_document.idx", "Megatron"},
        std::pair{"ids.npy", "NumPy"},
        std::pair{"ids.npz", "NumPy"},
        std::pair{"cached.pt", "PyTorch"},
        std::pair{"cached.pkl", "pickle"},
        std::pair{"ids.safetensors", "tensors"},
        std::pair{"ids.h5", "HDF5"},
        std::pair{"rows.sqlite", "database"},
        std::pair{"rows.xlsx", "spreadsheet"},
        std::pair{"paper.PDF", "its text"},
        std::pair{"paper.docx", "its text"},
        std::pair{"book.epub", "its text"}}) {
    SCOPED_TRACE(name);
    write_file(std::string("f/") + name, "\x01\0\x02\0\x03"s);
    expect_refused({std::string("f/") + name}, name, part, "which is not read", "JSONL");
    const Corpus corpus = read_corpus(options({"f"}));
    EXPECT_THAT(texts(corpus), ElementsAre("a"));
    EXPECT_EQ(files_left_out(corpus), R"({"binary":)" + std::to_string(++files) + "}");
  }
  fs::remove(path("f/a.txt"));
  expect_refused({"f"}, "no document to use: " + std::to_string(files) + " left out (binary)");
}

TEST_F(DataFilesTest, ShardsAreKnownByTheirLines) {
  const std::string line = "{\"tokens\": [1, 2]}\n";
  for (const char* const name : {"part-00000", "train.jsonl-00000-of-00002", "data.jsonlines"}) {
    SCOPED_TRACE(name);
    write_file(std::string("s/") + name, line + line);
    EXPECT_THAT(documents({std::string("s/") + name}), ElementsAre("12", "12"));
    EXPECT_THAT(documents({"s"}), ElementsAre("12", "12"));
    fs::remove(path(std::string("s/") + name));
  }
  write_file("s/lines.txt", line);  // that is meant as text
  EXPECT_EQ(documents({"s"}).front().size(), line.size());
  write_file("s/style.css", "{ color: red }\n");
  EXPECT_EQ(documents({"s/style.css"}).front().size(), 15U);
}

TEST_F(DataFilesTest, WhatIsEmptyIsNamedAsThat) {
  write_file("empty.jsonl", "");
  write_file("blank.jsonl", "\n\n");
  fs::create_directories(path("nothing"));
  for (const char* const name : {"empty.jsonl", "blank.jsonl", "nothing"}) {
    expect_refused({name}, name, "it is empty");
  }
  write_file("a.jsonl", "{\"tokens\": [1]}\r\n{\"text\": \"x\"}\r\n{\"input_ids\": [2]}\r\n");
  EXPECT_THAT(documents({"a.jsonl"}), ElementsAre("1", "x", "2"));
  expect_refused({"a.jsonl", "b.jsonl"}, "b.jsonl", "not there");  // of a list one is missing
  fs::create_symlink("two", path("one"));
  fs::create_symlink("one", path("two"));
  expect_refused({"one"}, "one", "cannot be read");
}

// Files that are evaluated on are no data to train on where they are only met there.
TEST_F(DataFilesTest, WhatIsEvaluatedOnIsHeldOut) {
  write_file("d/a.txt", "aa");
  write_file("d/val/b.txt", "bb");
  write_file("d/val/c.txt", "cc");
  write_file("else/e.txt", "ee");
  fs::create_symlink(path("else/e.txt"), path("d/e.txt"));
  const TextShape model = text_shape_from_config(
      nlohmann::json::parse(R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 4,
        "num_attention_heads": 1, "intermediate_size": 4, "vocab_size": 256})"),
      "a test");
  RunConfig config;
  config.output.folder = path("runs").string();
  const auto trained = [&](const std::vector<std::string>& data,
                           const std::vector<std::string>& evaluated) {
    const auto all = [&](const std::vector<std::string>& names) {
      std::vector<std::string> paths;
      for (const std::string& name : names) {
        paths.push_back(path(name).string());
      }
      return paths;
    };
    config.data.path = all(data);
    config.data.eval_path = all(evaluated);
    return texts(corpus_at("data.path", config.data.path, config, path("model"), model));
  };
  EXPECT_THAT(trained({"d"}, {}), ElementsAre("aa", "ee", "bb", "cc"));
  EXPECT_THAT(trained({"d"}, {"d/val"}), ElementsAre("aa", "ee"));
  EXPECT_THAT(trained({"d"}, {"d/val/b.txt", "else/e.txt"}), ElementsAre("aa", "cc"));
  EXPECT_THAT(trained({"d/*.txt"}, {"d/e*"}), ElementsAre("aa"));
  EXPECT_THAT(trained({"d", "d/val/b.txt"}, {"d/val/b.txt"}), testing::Contains("bb"));  // named
  EXPECT_THAT(trained({"d/val"}, {"d/val"}), ElementsAre("bb", "cc"));
  EXPECT_EQ(
      corpus_at("data.eval_path", {path("d/val").string()}, config, path("model"), model).size(),
      2);
  EXPECT_THAT(
      [&] { trained({"d/val"}, {"d"}); },
      testing::ThrowsMessage<std::invalid_argument>(HasSubstr("2 left out (")));
}

TEST_F(DataFilesTest, ShardsAreReadLineByLine) {
  write_file("d/train-00001-of-00002.jsonl", "{\"tokens\": [3]}\n{\"tokens\": [4]}");
  write_file("d/train-00000-of-00002.jsonl", "{\"tokens\": [1]}\n{\"tokens\": [2]}\n");
  write_file("d/sub/more.NDJSON", "{\"input_ids\": [5]}\n");
  write_file("d/old.json", "{\"id\": 1, \"tokens\": [6]}\n{\"tokens\": [7]}\n");
  write_file("d/README.md", "# about");
  write_file("d/dataset_info.json", "{\"features\": 1}");
  write_file("d/book.txt", "text");
  const Corpus corpus = read_corpus(options({"d"}));
  EXPECT_THAT(texts(corpus), ElementsAre("text", "6", "7", "5", "1", "2", "3", "4"));
  EXPECT_EQ(files_left_out(corpus), R"({"beside JSONL":2})");
  EXPECT_EQ(corpus.counts.jsonl_files, 4);
  EXPECT_EQ(corpus.counts.text_files, 1);
  EXPECT_THAT(names_of(corpus)[6], AllOf(HasSubstr("train-00001-of-00002.jsonl"), HasSubstr(":1")));
}

TEST_F(DataFilesTest, JsonWithoutDocumentsIsText) {
  write_file("d/package.json", "{\"name\": \"x\"}");
  write_file("d/pretty.json", "{\n  \"text\": \"x\"\n}");
  write_file("d/numbers.json", "[1, 2]");
  write_file("d/a.c", "int");
  EXPECT_EQ(read_corpus(options({"d"})).counts.text_files, 4);
}

TEST_F(DataFilesTest, FilesListsAndPatterns) {
  write_file("a.txt", "A");
  write_file("code.py", "P");
  write_file("b.jsonl", "{\"tokens\": [1]}\n");
  write_file("c.json", "{\"tokens\": [2]}\n");
  write_file("d/1.txt", "x");
  write_file("d/2.txt", "y");
  write_file("d/3.png", "\x89PNG");
  write_file("d/.4.txt", "hidden");
  write_file("with[1]*.txt", "Z");
  EXPECT_THAT(documents({"a.txt"}), ElementsAre("A"));
  EXPECT_THAT(documents({"code.py"}), ElementsAre("P"));
  EXPECT_THAT(documents({"c.json"}), ElementsAre("2"));
  // in the order in which they are given
  EXPECT_THAT(documents({"b.jsonl", "d", "a.txt"}), ElementsAre("1", "x", "y", "A"));
  EXPECT_THAT(documents({"d/*.txt"}), ElementsAre("x", "y"));
  EXPECT_THAT(documents({"d/[2-9].txt", "*.jsonl"}), ElementsAre("y", "1"));
  EXPECT_THAT(documents({"?"}), ElementsAre("x", "y"));        // the folder
  EXPECT_THAT(documents({"with[1]*.txt"}), ElementsAre("Z"));  // is there as it stands
  const Corpus all = read_corpus(options({"d/*"}));
  EXPECT_EQ(files_left_out(all), R"({"binary":1})");
  expect_refused({"d/*.jsonl"}, "d/*.jsonl", "matches no file");
  expect_refused({"**/*.txt"}, "**", "give the folder");
  expect_refused({"a.txt", "none"}, "none", "is not there");
  EXPECT_THROW((void)read_corpus({}), std::runtime_error);
}

TEST_F(DataFilesTest, AFileIsReadOnce) {
  write_file("d/a.txt", "A");
  write_file("d/sub/b.txt", "B");
  fs::create_symlink(path("d/a.txt"), path("d/z.txt"));
  fs::create_symlink("../a.txt", path("d/sub/again.txt"));
  const Corpus corpus = read_corpus(options({"d", "d/a.txt", "d/*.txt", "d/sub/../sub"}));
  EXPECT_THAT(texts(corpus), testing::UnorderedElementsAre("A", "B"));
  EXPECT_EQ(files_left_out(corpus), R"({"read already":7})");
  // a link alone is the file that it leads to, as in Hugging Face's cache
  write_file("blobs/0123", "{\"tokens\": [1]}\n");
  fs::create_directories(path("snapshot"));
  fs::create_symlink("../blobs/0123", path("snapshot/train.jsonl"));
  EXPECT_THAT(documents({"snapshot"}), ElementsAre("1"));
  fs::create_directory_symlink(path("snapshot"), path("latest"));
  EXPECT_THAT(documents({"latest"}), ElementsAre("1"));
}

TEST_F(DataFilesTest, LinksToFoldersAndToNothingAreRefused) {
  write_file("d/a.txt", "A");
  const auto refused = [&](const fs::path& to) {
    fs::create_symlink(to, path("d/link"));
    expect_refused({"d"}, "d/link", "not followed");
    fs::remove(path("d/link"));
  };
  refused(path("nothing"));
  refused(path("d"));  // a circle
  refused("link");     // to itself
  write_file("e/b.txt", "B");
  refused(path("e"));
  EXPECT_THAT(documents({"d"}), ElementsAre("A"));
}

TEST_F(DataFilesTest, WhatRunsWroteAndTheModelAreNoData) {
  write_file("d/a.txt", "A");
  write_file("d/runs/x/config.toml", "");
  write_file("d/runs/notes.txt", "no");
  write_file("d/model/config.json", "{}");
  write_file("d/model.toml", "vocab_size = 256");
  write_file("d/elsewhere/old/config.toml", "");
  write_file("d/elsewhere/old/metrics.jsonl", "{}");
  write_file("d/elsewhere/b.txt", "B");
  DataOptions given = options({"d"});
  given.no_data = {path("d/runs"), path("d/model"), path("d/model.toml"), path("d/not/there")};
  const Corpus corpus = read_corpus(given);
  EXPECT_THAT(texts(corpus), ElementsAre("A", "B"));
  EXPECT_EQ(files_left_out(corpus), R"({"output of runs, model, or data.eval_path":4})");
  given.paths = {path("d/runs")};  // given by name it is data
  given.no_data = {path("d/runs")};
  EXPECT_THAT(texts(read_corpus(given)), ElementsAre("no"));
}

TEST_F(DataFilesTest, WhatCannotBeReadIsNamed) {
  write_file("d/a.txt", "A");
  write_file("d/locked/b.txt", "B");
  const uid_t user = geteuid();
  constexpr uid_t kNobody = 65534;
  fs::permissions(path(""), fs::perms::all);
  const auto locked = [&](const std::string& name) {
    fs::permissions(path(name), fs::perms::none);
    if (user == 0) {
      ASSERT_EQ(seteuid(kNobody), 0);  // root may read all
    }
    expect_refused({"d"}, name, "cannot be read");
    if (user == 0) {
      ASSERT_EQ(seteuid(0), 0);
    }
    fs::permissions(path(name), fs::perms::all);
  };
  locked("d/locked");
  locked("d/locked/b.txt");
  EXPECT_THAT(documents({"d"}), ElementsAre("A", "B"));
}

TEST_F(DataFilesTest, WhatHoldsNothingSaysWhatWasLeftOut) {
  write_file("d/.hidden", "h");
  write_file("d/empty.txt", "");
  expect_refused({"d"}, "no document", "1 were shorter than 1", "1 left out (hidden)");
}

TEST_F(DataFilesTest, TokenizersAreKnownByTheirFiles) {
  for (const char* const name :
       {"tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.txt",
        "vocab.json",
        "merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tekken.json",
        "qwen.tiktoken",
        "special_tokens_map.json"}) {
    SCOPED_TRACE(name);
    write_file("m/config.json", "{}");
    write_file("m/model.safetensors", "");
    EXPECT_EQ(tokenizer_file(path("m")), "");
    write_file(std::string("m/") + name, "");
    EXPECT_EQ(tokenizer_file(path("m")), name);
    fs::remove(path(std::string("m/") + name));
  }
  EXPECT_EQ(tokenizer_file(path("none")), "");
  EXPECT_EQ(tokenizer_file(path("m/config.json")), "");
}

TEST_F(DataFilesTest, TheEndOfTextIsTheTokenizersOrTheModels) {
  EXPECT_EQ(end_id_of(path("m")), std::nullopt);
  write_file("m/config.json", R"({"eos_token_id": 2})");
  EXPECT_EQ(end_id_of(path("m")), 2);
  write_file("m/generation_config.json", R"({"eos_token_id": [5, 6]})");
  EXPECT_EQ(end_id_of(path("m")), 5);
  write_file("m/generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(end_id_of(path("m")), 2);
  write_file("m/tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(end_id_of(path("m")), 2);  // its id is not said
  write_file("m/tokenizer.json", R"({"added_tokens": [{"id": 8, "content": "</s>"}]})");
  EXPECT_EQ(end_id_of(path("m")), 8);
  write_file(
      "m/tokenizer_config.json",
      R"({"eos_token": {"content": "<e>"}, "added_tokens_decoder": {"9": {"content": "<e>"}}})");
  EXPECT_EQ(end_id_of(path("m")), 9);
  write_file("m/tokenizer_config.json", "{");
  EXPECT_THAT(
      [&] { (void)end_id_of(path("m")); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("tokenizer_config.json: is not JSON")));
}

TEST_F(DataFilesTest, AnAlignmentWithANulByteIsRefused) {
  using namespace std::string_literals;
  write_file("a.sto", "# STOCKHOLM 1.0\nx ARND\n# \0\n//\n"s);
  EXPECT_THAT(
      [&] { (void)read_alignment_file(path("a.sto")); },
      testing::ThrowsMessage<std::runtime_error>(HasSubstr("NUL byte")));
}

TEST(DataReport, SaysWhatWasLeftOutAndWhy) {
  DataCounts counts;
  counts.documents = 1;
  counts.tokens = 64;
  counts.labels = 63;
  counts.jsonl_files = 2;
  EXPECT_THAT(data_lines(counts), ElementsAre("data: 1 document, 64 tokens from 2 JSONL files"));
  counts.max_tokens = 64;
  counts.cut = 1;
  counts.cut_tokens = 36;
  counts.cut_labels = 35;
  counts.unlabelled = 1;
  counts.split = 2;
  counts.pieces = 5;
  counts.min_tokens = 2;
  counts.skipped_short = 3;
  counts.skipped_short_tokens = 3;
  counts.padding = 7;
  counts.unused_keys = {"id", "url"};
  EXPECT_THAT(
      data_lines(counts, "evaluation data"),
      ElementsAre(
          "evaluation data: 1 document, 64 tokens from 2 JSONL files; cut 1 document to 64 tokens: "
          "36 tokens and 35 labels left out, 1 document left without a label by the cut; split 2 "
          "documents into 5 pieces of at most 64 tokens; skipped 3 documents shorter than 2 tokens "
          "(3 tokens); 7 tokens of padding left out; keys not used: id, url"));
  counts.beyond_window = 1;
  counts.window = 50;
  counts.texts = 1;
  counts.vocab = 32000;
  counts.end_id = 2;
  const auto lines = data_lines(counts);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], HasSubstr("bytes of text as tokens and id 2 after each text"));
  EXPECT_THAT(lines[1], HasSubstr("1 document is longer than max_position_embeddings, 50"));
  EXPECT_THAT(lines[2], HasSubstr("a vocabulary of 32000"));
  counts.vocab = 300;
  EXPECT_EQ(data_lines(counts).size(), 2U);
  EXPECT_EQ(json_of(counts)["left_without_label"], 1);
  counts.labels = 0;
  EXPECT_THAT(data_lines(counts)[1], HasSubstr("no label counts"));
  counts.labels_counted = false;  // nobody knows
  EXPECT_EQ(data_lines(counts).size(), 2U);
}

}  // namespace
}  // namespace paradyse
