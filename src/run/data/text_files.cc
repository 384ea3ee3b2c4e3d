// Files of text and JSONL: read once for the lengths of their documents, and again when a document
// is asked for.  They are mapped only while they are read: there may be more of them than a process
// may map.
#include <algorithm>
#include <iterator>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"
#include "src/plan/tokens/mapped_file.h"
#include "src/run/data/data_files.h"
#include "src/run/data/document_file.h"

namespace paradyse {
namespace {

Tokens part_of(const Tokens& tokens, Interval part) {
  return {tokens.begin() + part.begin, tokens.begin() + part.end};
}

Document part_of(LineDocument document, Interval part) {
  const bool whole = part.size() == std::ssize(document.tokens);
  Document one;
  one.tokens = whole ? std::move(document.tokens) : part_of(document.tokens, part);
  if (document.labels) {
    one.labels = whole ? std::move(document.labels) : part_of(*document.labels, part);
  }
  return one;
}

void end(LineDocument& document, const DataOptions& options) {
  if (document.text && options.end_id && !document.tokens.empty()) {
    document.tokens.push_back(*options.end_id);
  }
}

class HeldDocuments : public DocumentFile {
 public:
  HeldDocuments(std::vector<Tokens> documents, std::vector<Tokens> labels)
      : documents_(std::move(documents)), labels_(std::move(labels)) {}

  [[nodiscard]] std::int64_t size() const override { return std::ssize(documents_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return std::ssize(documents_[idx(document)]);
  }
  [[nodiscard]] bool labelled(std::int64_t /*document*/) const override { return !labels_.empty(); }
  [[nodiscard]] Document read(std::int64_t document, Interval tokens) const override {
    Document one{.tokens = part_of(documents_[idx(document)], tokens)};
    if (!labels_.empty()) {
      one.labels = part_of(labels_[idx(document)], tokens);
    }
    return one;
  }
  [[nodiscard]] std::string name(std::int64_t document) const override {
    return "document " + std::to_string(document);
  }

 private:
  std::vector<Tokens> documents_;
  std::vector<Tokens> labels_;
};

class TextFile : public DocumentFile {
 public:
  TextFile(
      std::filesystem::path path,
      FileState state,
      std::int64_t tokens,
      std::shared_ptr<const DataOptions> options)
      : path_(std::move(path)), state_(state), tokens_(tokens), options_(std::move(options)) {}

  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] std::int64_t length(std::int64_t /*document*/) const override { return tokens_; }
  [[nodiscard]] bool labelled(std::int64_t /*document*/) const override { return false; }
  [[nodiscard]] Document read(std::int64_t /*document*/, Interval tokens) const override {
    const MappedFile file(path_);
    file.expect_unchanged_since(state_);
    LineDocument text{.tokens = byte_tokens(file.bytes(), *options_, path_.string()), .text = true};
    end(text, *options_);
    return part_of(std::move(text), tokens);
  }
  [[nodiscard]] std::string name(std::int64_t /*document*/) const override {
    return path_.string();
  }

 private:
  std::filesystem::path path_;
  FileState state_;
  std::int64_t tokens_;
  std::shared_ptr<const DataOptions> options_;
};

class LineFile : public DocumentFile {
 public:
  LineFile(
      std::filesystem::path path,
      std::shared_ptr<const DataOptions> options,
      UnusedKeys& unused,
      const FoundDocument& found)
      : path_(std::move(path)), options_(std::move(options)) {
    const MappedFile file(path_);
    state_ = file.state();
    const std::string_view bytes = file.bytes();
    std::int64_t number = 1;
    for (std::size_t begin = 0; begin < bytes.size(); ++number) {
      const std::string_view line = line_at(bytes, begin);
      if (line.size() > kMostContent) {
        refuse(
            path_.string() + ":" + std::to_string(number),
            "has more than " + std::to_string(kMostContent) +
                " bytes, which no line may have: write one document a line, split a longer one, or "
                "make token files of it with paradyse-data");
      }
      if (number == 1) {
        if (const std::string why = foreign_format(line); !why.empty()) {
          refuse(path_.string(), why);
        }
      }
      if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        const std::string where = path_.string() + ":" + std::to_string(number);
        LineDocument document = line_document(std::string(line), *options_, where, unused);
        end(document, *options_);
        if (const std::int64_t blank = number - size() - 1; blank != blank_before(size())) {
          blank_.emplace_back(size(), blank);
        }
        begins_.push_back(static_cast<std::int64_t>(begin));
        lengths_.push_back(static_cast<std::int32_t>(document.tokens.size()));
        labelled_.push_back(document.labels.has_value());
        found(std::move(document), where);
      }
      release_behind(file, begin, begin + line.size() + 1);
      begin += line.size() + 1;
    }
    begins_.shrink_to_fit();
    lengths_.shrink_to_fit();
  }

  [[nodiscard]] std::int64_t size() const override { return std::ssize(begins_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return lengths_[idx(document)];
  }
  [[nodiscard]] bool labelled(std::int64_t document) const override {
    return labelled_[idx(document)];
  }
  [[nodiscard]] Document read(std::int64_t document, Interval tokens) const override {
    const MappedFile file(path_);
    file.expect_unchanged_since(state_);
    UnusedKeys told_already;
    LineDocument line = line_document(
        std::string(line_at(file.bytes(), idx(begins_[idx(document)]))),
        *options_,
        name(document),
        told_already);
    end(line, *options_);
    return part_of(std::move(line), tokens);
  }
  [[nodiscard]] std::string name(std::int64_t document) const override {
    return path_.string() + ":" + std::to_string(place(document));
  }
  [[nodiscard]] std::int64_t place(std::int64_t document) const override {
    return document + 1 + blank_before(document);
  }

 private:
  // Lines before a document that are none.
  [[nodiscard]] std::int64_t blank_before(std::int64_t document) const {
    const auto after = std::ranges::upper_bound(blank_, document, {}, &Blank::first);
    return after == blank_.begin() ? 0 : std::prev(after)->second;
  }

  // So that reading a file does not fill the memory with it.
  static void release_behind(const MappedFile& file, std::size_t begin, std::size_t end) {
    constexpr std::size_t kBlock = std::size_t{64} << 20U;
    if (begin / kBlock != end / kBlock) {
      file.release(0, end);
    }
  }

  std::filesystem::path path_;
  FileState state_;
  std::shared_ptr<const DataOptions> options_;
  std::vector<std::int64_t> begins_;   // byte
  std::vector<std::int32_t> lengths_;  // tokens, fewer than a line has bytes
  std::vector<bool> labelled_;
  using Blank = std::pair<std::int64_t, std::int64_t>;
  std::vector<Blank> blank_;  // from this document on, so many lines before it are none
};

}  // namespace

std::unique_ptr<DocumentFile> held_documents(
    std::vector<Tokens> documents, std::vector<Tokens> labels) {
  return std::make_unique<HeldDocuments>(std::move(documents), std::move(labels));
}

std::unique_ptr<DocumentFile> line_file(
    const std::filesystem::path& path,
    std::shared_ptr<const DataOptions> options,
    UnusedKeys& unused,
    const FoundDocument& found) {
  return std::make_unique<LineFile>(path, std::move(options), unused, found);
}

std::unique_ptr<DocumentFile> text_file(
    const std::filesystem::path& path,
    bool surely,
    std::shared_ptr<const DataOptions> options,
    const FoundDocument& found) {
  const MappedFile file(path);
  if (const std::string why = no_text(file.bytes()); !why.empty()) {
    if (surely) {
      refuse(path.string(), why);
    }
    return nullptr;
  }
  LineDocument text{.tokens = byte_tokens(file.bytes(), *options, path.string()), .text = true};
  end(text, *options);
  const std::int64_t tokens = std::ssize(text.tokens);
  found(std::move(text), path.string());
  return std::make_unique<TextFile>(path, file.state(), tokens, std::move(options));
}

}  // namespace paradyse
