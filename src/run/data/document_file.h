// A file of documents: how many it has, how long each is, and, when it is asked for, what is in it.
// One class for each kind of file; corpus.cc makes a corpus of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/layout.h"
#include "paradyse/run/data.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/json_line.h"

namespace paradyse {

class DocumentFile {
 public:
  DocumentFile() = default;
  virtual ~DocumentFile() = default;
  DocumentFile(const DocumentFile&) = delete;
  DocumentFile& operator=(const DocumentFile&) = delete;

  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t length(std::int64_t document) const = 0;
  // Whether it brings labels of its own.
  [[nodiscard]] virtual bool labelled(std::int64_t document) const = 0;
  // These tokens of a document, and their labels where it is labelled.  Throws as
  // Corpus::document().
  [[nodiscard]] virtual Document read(std::int64_t document, Interval tokens) const = 0;
  [[nodiscard]] virtual std::string name(std::int64_t document) const = 0;
  // Its place in the file: a line, or its number.
  [[nodiscard]] virtual std::int64_t place(std::int64_t document) const { return document; }
};

// Documents in memory.
std::unique_ptr<DocumentFile> held_documents(
    std::vector<Tokens> documents, std::vector<Tokens> labels);

// Lines and text are read as they are found.
using FoundDocument = std::function<void(LineDocument document, const std::string& name)>;

// A JSONL file: of each line that is a document its place and length are kept, 12 bytes.  Calls
// `found` for each, with options.end_id behind a text.
std::unique_ptr<DocumentFile> line_file(
    const std::filesystem::path& path,
    std::shared_ptr<const DataOptions> options,
    UnusedKeys& unused,
    const FoundDocument& found);

// A file of text, one document.  Null where it is no text, unless it is `surely` meant as such,
// when that throws.
std::unique_ptr<DocumentFile> text_file(
    const std::filesystem::path& path,
    bool surely,
    std::shared_ptr<const DataOptions> options,
    const FoundDocument& found);

// X.bin of Megatron-core, or llm.c's .bin.  `sources`: what X.sources.bin numbers; may be null.
// What makes it the file it is goes into `contents`. Ids are compared with the vocabulary when a
// document is read.  Throws std::runtime_error naming the file, also for a masked language model,
// whose labels are other ids.
std::unique_ptr<DocumentFile> token_file(
    const std::filesystem::path& bin,
    std::shared_ptr<const DataOptions> options,
    std::shared_ptr<const std::vector<std::string>> sources,
    Xxh64& contents);

// Labels by which a token is scored, where all count, and of these: the first is none, but of a
// masked language model.
inline std::int64_t scored_labels(std::int64_t tokens, bool masked_lm) {
  return std::max<std::int64_t>(0, tokens - (masked_lm ? 0 : 1));
}
inline std::int64_t scored_labels(std::span<const std::int32_t> labels, bool masked_lm) {
  return std::ranges::count_if(
      labels.subspan(masked_lm || labels.empty() ? 0 : 1),
      [](std::int32_t label) { return label >= 0; });
}

}  // namespace paradyse
