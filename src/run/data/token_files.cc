// Files of token ids, mapped as long as the corpus lives: only indices are read when it is made.
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/refuse.h"
#include "src/plan/tokens/indexed_tokens.h"
#include "src/plan/tokens/llmc_tokens.h"
#include "src/run/data/document_file.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;

// X.NAME.bin of X.bin.
fs::path beside(const fs::path& bin, const char* name) {
  return fs::path(bin).replace_extension(std::string(".") + name + ".bin");
}

// Where each document comes from: two uint64, the number of a source and the line; 0: all of it.
class DocumentOrigins {
 public:
  DocumentOrigins(
      const fs::path& path,
      std::shared_ptr<const std::vector<std::string>> sources,
      std::int64_t documents)
      : file_(path), sources_(std::move(sources)) {
    const std::int64_t bytes = std::ssize(file_.bytes());
    if (bytes % kBytes != 0 || bytes / kBytes != documents) {
      refuse(
          path.string(),
          fmt::format(
              "has {} bytes, not 16 for each of {} documents; it is damaged, or was not copied "
              "whole: copy or make it again",
              bytes,
              documents));
    }
  }

  // "": not known.
  [[nodiscard]] std::string name(std::int64_t document) const {
    const auto number = [&](std::size_t i) {
      return number_at<std::uint64_t>(file_.bytes(), idx(document * kBytes) + 8 * i);
    };
    try {
      file_.expect_unchanged();
    } catch (const std::runtime_error&) {  // what is to be said of the document says more
      return "";
    }
    const std::uint64_t source = number(0);
    const std::uint64_t line = number(1);
    if (sources_ == nullptr || source >= sources_->size()) {
      return "";
    }
    const std::string& path = (*sources_)[source];
    return line == 0 ? path : fmt::format("{}:{}", path, line);
  }

 private:
  static constexpr std::int64_t kBytes = 16;  // a document

  MappedFile file_;
  std::shared_ptr<const std::vector<std::string>> sources_;
};

std::string numbered(const fs::path& file, std::int64_t document) {
  return fmt::format("{}, document {}", file.string(), document);
}

class IndexedFile : public DocumentFile {
 public:
  IndexedFile(
      const fs::path& bin,
      std::shared_ptr<const DataOptions> options,
      std::shared_ptr<const std::vector<std::string>> sources,
      Xxh64& contents)
      : tokens_(bin), options_(std::move(options)) {
    tokens_.add_to(contents);
    std::error_code error;
    const fs::path labels = beside(bin, "labels");
    if (fs::exists(labels, error) ||
        fs::exists(fs::path(labels).replace_extension(".idx"), error)) {
      labels_.emplace(labels);
      expect_labels_of_tokens();
      labels_->add_to(contents);
    }
    if (const fs::path origins = beside(bin, "sources"); fs::exists(origins, error)) {
      origins_.emplace(origins, std::move(sources), tokens_.size());
    }
  }

  [[nodiscard]] std::int64_t size() const override { return tokens_.size(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return tokens_.length(document);
  }
  [[nodiscard]] bool labelled(std::int64_t /*document*/) const override {
    return labels_.has_value();
  }
  [[nodiscard]] Document read(std::int64_t document, Interval tokens) const override {
    Document one;
    one.tokens.resize(idx(tokens.size()));
    const std::string where = name(document);
    tokens_.read(document, tokens.begin, options_->vocab, where, one.tokens);
    if (labels_) {
      Tokens counts(idx(tokens.size()));
      labels_->read(document, tokens.begin, /*vocab=*/2, where + ": its labels", counts);
      for (std::size_t i = 0; i < counts.size(); ++i) {
        counts[i] = counts[i] == 0 ? kNoLabel : one.tokens[i];
      }
      one.labels = std::move(counts);
    }
    return one;
  }
  [[nodiscard]] std::string name(std::int64_t document) const override {
    const std::string origin = origins_ ? origins_->name(document) : "";
    const std::string here = numbered(tokens_.path(), document);
    return origin.empty() ? here : fmt::format("{} ({})", origin, here);
  }

 private:
  void expect_labels_of_tokens() const {
    const std::string where = labels_->path().string();
    if (labels_->size() != tokens_.size()) {
      refuse(
          where,
          fmt::format(
              "has labels of {} documents, but {} has {}; make both again",
              labels_->size(),
              tokens_.path().string(),
              tokens_.size()));
    }
    for (std::int64_t d = 0; d < tokens_.size(); ++d) {
      if (labels_->length(d) != tokens_.length(d)) {
        refuse(
            where,
            fmt::format(
                "has {} labels of document {}, which has {} tokens; make both again",
                labels_->length(d),
                d,
                tokens_.length(d)));
      }
    }
  }

  IndexedTokens tokens_;
  std::optional<IndexedTokens> labels_;  // 1: its label counts
  std::optional<DocumentOrigins> origins_;
  std::shared_ptr<const DataOptions> options_;
};

class LlmcFile : public DocumentFile {
 public:
  LlmcFile(const fs::path& path, std::shared_ptr<const DataOptions> options, Xxh64& contents)
      : tokens_(path), options_(std::move(options)) {
    tokens_.add_to(contents);
  }

  [[nodiscard]] std::int64_t size() const override { return tokens_.size(); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override {
    return tokens_.length(document);
  }
  [[nodiscard]] bool labelled(std::int64_t /*document*/) const override { return false; }
  [[nodiscard]] Document read(std::int64_t document, Interval tokens) const override {
    Document one;
    one.tokens.resize(idx(tokens.size()));
    tokens_.read(document, tokens.begin, options_->vocab, name(document), one.tokens);
    return one;
  }
  [[nodiscard]] std::string name(std::int64_t document) const override {
    return numbered(tokens_.path(), document);
  }

 private:
  LlmcTokens tokens_;
  std::shared_ptr<const DataOptions> options_;
};

}  // namespace

std::unique_ptr<DocumentFile> token_file(
    const fs::path& bin,
    std::shared_ptr<const DataOptions> options,
    std::shared_ptr<const std::vector<std::string>> sources,
    Xxh64& contents) {
  if (options->labels) {
    refuse(
        bin.string(),
        "is a file of token ids, but this model predicts masked tokens, whose labels are other "
        "ids; give a .jsonl file with {\"tokens\": [...], \"labels\": [...]} a line");
  }
  std::error_code error;
  if (!fs::exists(index_of(bin), error) && is_llmc(bin)) {
    return std::make_unique<LlmcFile>(bin, std::move(options), contents);
  }
  return std::make_unique<IndexedFile>(bin, std::move(options), std::move(sources), contents);
}

}  // namespace paradyse
