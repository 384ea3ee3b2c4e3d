// Documents found in files, cut to size by their lengths, and read when they are asked for.
#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/layout.h"
#include "paradyse/run/data.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/plan/base/xxh64.h"
#include "src/run/data/data_files.h"
#include "src/run/data/document_file.h"
#include "src/run/data/kept_pieces.h"
#include "src/run/data/prepared_folder.h"

namespace paradyse {

namespace {

namespace fs = std::filesystem;

// Of documents with labels, where some have none of their own: those are their tokens.
class ContentHash {
 public:
  void add(std::span<const std::int32_t> tokens, std::span<const std::int32_t> labels) {
    add(tokens_, tokens);
    add(labelled_, tokens);
    add(labelled_, labels);
  }
  void add_file(const std::string& contents) {
    tokens_.add(contents);
    labelled_.add(contents);
  }
  [[nodiscard]] std::string hex(bool labelled) const {
    return labelled ? labelled_.hex() : tokens_.hex();
  }

 private:
  static void add(Xxh64& hash, std::span<const std::int32_t> ids) {
    const std::uint64_t count = ids.size();
    hash.add({reinterpret_cast<const char*>(&count), sizeof(count)});
    hash.add({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
  }

  Xxh64 tokens_;    // where no document has labels
  Xxh64 labelled_;  // where one has
};

std::uint64_t key_of(const std::string& name) {
  Xxh64 hash;
  hash.add(name);
  return hash.value();
}

// The finalizer of SplitMix64 (Steele et al. 2014): numbers that are near come out far apart.
std::uint64_t mixed(std::uint64_t number) {
  number = (number ^ (number >> 30U)) * 0xbf58476d1ce4e5b9U;
  number = (number ^ (number >> 27U)) * 0x94d049bb133111ebU;
  return number ^ (number >> 31U);
}

}  // namespace

struct Corpus::Contents {
  struct File {
    std::unique_ptr<DocumentFile> documents;
    std::uint64_t key = 0;
    KeptPieces pieces = {};
    std::int64_t end = 0;  // documents of the corpus in this file and those before it
  };
  // A document of the corpus, in its file.
  struct Place {
    const File& file;
    std::int64_t document = 0;
    Interval tokens;
  };

  std::vector<File> files;
  std::int64_t max_tokens = std::numeric_limits<std::int64_t>::max();
  bool split = false;
  bool masked_lm = false;
  bool labelled = false;
  std::vector<std::int64_t> ends;
  std::string fingerprint;

  [[nodiscard]] std::int64_t size() const { return files.empty() ? 0 : files.back().end; }
  [[nodiscard]] Place place(std::int64_t i) const {
    const auto file = std::ranges::upper_bound(files, i, {}, &File::end);
    if (i < 0 || file == files.end()) {
      throw std::logic_error(fmt::format("Corpus: document {} of {}", i, size()));
    }
    const std::int64_t piece = i - (file->end - file->pieces.size());
    const std::int64_t document = file->pieces.document(piece);
    const std::int64_t begin = file->pieces.begin(piece);
    const std::int64_t left = file->documents->length(document) - begin;
    return {
        .file = *file, .document = document, .tokens = {begin, begin + std::min(left, max_tokens)}};
  }
};

// Makes a corpus of what it is given, one file after the other.
class CorpusReader {
 public:
  explicit CorpusReader(const DataOptions& options)
      : options_(std::make_shared<const DataOptions>(options)),
        contents_(std::make_shared<Corpus::Contents>()) {
    if (options.too_long == TooLong::split && options.max_tokens == 1 && !options.labels) {
      throw std::runtime_error(
          "documents would be split into pieces of 1 token, which predict nothing; give a limit of "
          "at least 2");
    }
    counts_.min_tokens = options.min_tokens;
    counts_.max_tokens = options.max_tokens;
    counts_.window = options.window;
    counts_.vocab = options.vocab;
    contents_->masked_lm = options.labels;
    contents_->split = options.too_long == TooLong::split;
    if (options.max_tokens > 0) {
      contents_->max_tokens = options.max_tokens;
    }
  }

  DataCounts& counts() { return counts_; }

  void read(const DataFile& file) {
    pieces_ = {};
    document_ = 0;
    const FoundDocument found = [&](LineDocument document, const std::string& name) {
      take(std::move(document), name);
    };
    std::unique_ptr<DocumentFile> documents;
    if (file.holds == Holds::tokens) {
      documents = take_tokens(file);
      ++counts_.token_files;
    } else if (file.holds == Holds::lines) {
      documents = line_file(file.path, options_, unused_, found);
      ++counts_.jsonl_files;
    } else {
      documents = text_file(file.path, file.text, options_, found);
      if (documents == nullptr) {
        leave_out(counts_.left_out, kBinary, file.path);
        return;
      }
      ++counts_.text_files;
    }
    add_file(std::move(documents), file.below);
  }

  void hold(std::vector<Tokens> documents, std::vector<Tokens> labels) {
    for (std::size_t d = 0; d < documents.size(); ++d) {
      LineDocument one{.tokens = documents[d]};
      if (!labels.empty()) {
        one.labels = labels.at(d);
      }
      take(std::move(one), "document " + std::to_string(d));
    }
    add_file(held_documents(std::move(documents), std::move(labels)), "");
  }

  // All files of a path were read.
  void end_path() { contents_->ends.push_back(contents_->size()); }

  Corpus corpus() && {
    counts_.unused_keys = unused_.names();
    contents_->fingerprint = hash_.hex(contents_->labelled);
    Corpus corpus;
    corpus.counts = std::move(counts_);
    corpus.contents_ = std::move(contents_);
    return corpus;
  }

 private:
  void add_file(std::unique_ptr<DocumentFile> documents, const std::string& name) {
    const std::int64_t end = contents_->size() + pieces_.size();
    if (pieces_.size() > 0) {
      contents_->files.push_back(
          {.documents = std::move(documents),
           .key = key_of(name),
           .pieces = std::move(pieces_),
           .end = end});
    }
  }

  // A document that was read.
  void take(LineDocument document, const std::string& name) {
    if (document.text) {
      ++counts_.texts;
      if (options_->end_id && !document.tokens.empty()) {
        counts_.end_id = options_->end_id;
      }
    }
    counts_.padding += document.padding;
    const Document content{
        .tokens = std::move(document.tokens), .labels = std::move(document.labels)};
    const auto labels_of = [&](Interval tokens) { return scored(content, tokens); };
    for (const Interval piece : kept(std::ssize(content.tokens), [&] { return name; }, labels_of)) {
      const auto part = [&](const Tokens& ids) {
        return std::span(ids).subspan(idx(piece.begin), idx(piece.size()));
      };
      contents_->labelled = contents_->labelled || content.labels.has_value();
      hash_.add(part(content.tokens), part(content.labels ? *content.labels : content.tokens));
      keep(piece, labels_of(piece));
    }
    ++document_;
  }

  // Documents that are not read: all that is known of them are their lengths.
  std::unique_ptr<DocumentFile> take_tokens(const DataFile& file) {
    Xxh64 contents;
    const PreparedFolder::Shard* shard = nullptr;
    std::shared_ptr<const std::vector<std::string>> sources;
    if (file.prepared != nullptr) {
      if (file.prepared != folder_) {  // its shards come one after the other
        folder_ = file.prepared;
        expect_made_for(*folder_, *options_);
      }
      shard = &file.prepared->shards[file.shard];
      contents.add(shard->sha256);
      sources = {file.prepared, &file.prepared->sources};
    }
    std::unique_ptr<DocumentFile> documents =
        token_file(file.path, options_, std::move(sources), contents);
    const bool labelled = documents->size() > 0 && documents->labelled(0);
    const auto labels_of = [&](Interval tokens) {
      return scored_labels(tokens.size(), options_->labels);
    };
    std::int64_t tokens = 0;
    for (; document_ < documents->size(); ++document_) {
      const std::int64_t length = documents->length(document_);
      tokens += length;
      for (const Interval piece :
           kept(length, [&] { return documents->name(document_); }, labels_of)) {
        contents_->labelled = contents_->labelled || labelled;
        counts_.labels_counted = counts_.labels_counted && !labelled;
        keep(piece, labels_of(piece));
      }
    }
    if (shard != nullptr && (shard->documents != documents->size() || shard->tokens != tokens)) {
      refuse(
          file.path.string(),
          fmt::format(
              "has {} documents and {} tokens, but data.json says {} and {}; copy or prepare the "
              "folder again",
              documents->size(),
              tokens,
              shard->documents,
              shard->tokens));
    }
    if (shard != nullptr && !labelled && shard->labels != tokens - documents->size()) {
      refuse(
          file.path.string(),
          fmt::format(
              "has no {0}.labels.bin and {0}.labels.idx, but data.json says that {1} labels of {2} "
              "tokens count; copy or prepare the folder again",
              shard->name,
              shard->labels,
              tokens));
    }
    hash_.add_file(contents.hex());
    return documents;
  }

  // The pieces of a document of so many tokens that are kept, by the options; counts what is not.
  template <typename Name, typename Labels>
  std::vector<Interval> kept(std::int64_t length, const Name& name, const Labels& labels_of) {
    const std::int64_t most = options_->max_tokens;
    if (length < options_->min_tokens) {
      ++counts_.skipped_short;
      counts_.skipped_short_tokens += length;
      return {};
    }
    if (most == 0 || length <= most) {
      return {{0, length}};
    }
    switch (options_->too_long) {
      case TooLong::cut: {
        const std::int64_t labels = labels_of({0, length});
        const std::int64_t left = labels_of({0, most});
        ++counts_.cut;
        counts_.cut_tokens += length - most;
        counts_.cut_labels += labels - left;
        counts_.unlabelled += labels > 0 && left == 0 ? 1 : 0;
        return {{0, most}};
      }
      case TooLong::skip:
        ++counts_.skipped_long;
        counts_.skipped_long_tokens += length;
        return {};
      case TooLong::split: {
        ++counts_.split;
        const std::int64_t shared = options_->labels ? 0 : 1;
        std::vector<Interval> pieces;
        for (std::int64_t begin = 0; begin + shared < length; begin += most - shared) {
          ++counts_.pieces;
          pieces.push_back({begin, std::min(begin + most, length)});
        }
        return pieces;
      }
      case TooLong::refuse:
        refuse(
            name(),
            "has " + std::to_string(length) + " tokens, more than the " + std::to_string(most) +
                " allowed; raise the limit, or let long documents be cut or skipped or split");
    }
    throw std::logic_error("read_corpus: TooLong with an unknown value");
  }

  [[nodiscard]] std::int64_t scored(const Document& document, Interval tokens) const {
    return document.labels
               ? scored_labels(
                     std::span(*document.labels).subspan(idx(tokens.begin), idx(tokens.size())),
                     options_->labels)
               : scored_labels(tokens.size(), options_->labels);
  }

  void keep(Interval piece, std::int64_t labels) {
    ++counts_.documents;
    counts_.tokens += piece.size();
    counts_.labels += labels;
    counts_.beyond_window += options_->window > 0 && piece.size() > options_->window ? 1 : 0;
    pieces_.add(document_, piece.begin);
  }

  std::shared_ptr<const DataOptions> options_;
  std::shared_ptr<Corpus::Contents> contents_;
  DataCounts counts_;
  UnusedKeys unused_;
  ContentHash hash_;
  std::shared_ptr<const PreparedFolder> folder_;  // of the last shard
  // of the file that is read
  KeptPieces pieces_;
  std::int64_t document_ = 0;
};

Corpus::Corpus() : contents_(std::make_shared<const Contents>()) {}

Corpus::Corpus(std::vector<Tokens> documents, std::vector<Tokens> labels) {
  DataOptions all;
  all.min_tokens = 0;
  CorpusReader reader(all);
  reader.hold(std::move(documents), std::move(labels));
  reader.end_path();
  *this = std::move(reader).corpus();
}

std::int64_t Corpus::size() const { return contents_->size(); }

std::int64_t Corpus::length(std::int64_t document) const {
  return contents_->place(document).tokens.size();
}

bool Corpus::labelled() const { return contents_->labelled; }

Document Corpus::document(std::int64_t document) const {
  const Contents::Place place = contents_->place(document);
  Document one = place.file.documents->read(place.document, place.tokens);
  if (contents_->labelled && !one.labels) {
    one.labels = one.tokens;
  }
  return one;
}

std::int64_t Corpus::scored(std::int64_t document) const {
  const Contents::Place place = contents_->place(document);
  if (place.file.documents->labelled(place.document)) {
    return scored(place.file.documents->read(place.document, place.tokens));
  }
  return scored_labels(place.tokens.size(), contents_->masked_lm);
}

std::int64_t Corpus::scored(const Document& read) const {
  return read.labels ? scored_labels(*read.labels, contents_->masked_lm)
                     : scored_labels(std::ssize(read.tokens), contents_->masked_lm);
}

std::string Corpus::name(std::int64_t document) const {
  const Contents::Place place = contents_->place(document);
  const DocumentFile& documents = *place.file.documents;
  const std::string whole = documents.name(place.document);
  return contents_->split && documents.length(place.document) > contents_->max_tokens
             ? fmt::format("{}, from token {}", whole, place.tokens.begin)
             : whole;
}

std::uint64_t Corpus::key(std::int64_t document) const {
  const Contents::Place place = contents_->place(document);
  const auto number = static_cast<std::uint64_t>(place.file.documents->place(place.document));
  return mixed(place.file.key + mixed(number));
}

const std::vector<std::int64_t>& Corpus::ends() const { return contents_->ends; }

std::string Corpus::fingerprint() const { return contents_->fingerprint; }

Corpus read_corpus(const DataOptions& options) {
  CorpusReader reader(options);
  DataFiles files = data_files(options);
  reader.counts().left_out = std::move(files.left_out);
  std::size_t paths = 0;
  for (const DataFile& file : files.files) {
    for (; paths < file.given; ++paths) {
      reader.end_path();
    }
    reader.read(file);
  }
  for (; paths < options.paths.size(); ++paths) {
    reader.end_path();
  }
  Corpus corpus = std::move(reader).corpus();
  if (corpus.size() == 0) {
    std::vector<std::string> names;
    for (const fs::path& path : options.paths) {
      names.push_back(path.string());
    }
    const DataCounts& counts = corpus.counts;
    std::vector<std::string> what;
    if (counts.skipped_short > 0) {
      what.push_back(
          std::to_string(counts.skipped_short) + " were shorter than " +
          std::to_string(options.min_tokens) + " tokens");
    }
    if (counts.skipped_long > 0) {
      what.push_back(
          std::to_string(counts.skipped_long) + " were longer than " +
          std::to_string(options.max_tokens) + " tokens");
    }
    for (const auto& [why, one] : counts.left_out) {
      what.push_back(std::to_string(one.files) + " left out (" + why + ")");
    }
    refuse(
        joined(names, ", "),
        "has no document to use: " + (what.empty() ? "it is empty" : joined(what, ", ")) +
            "; give a folder of text files or a .jsonl file, or change the limits");
  }
  return corpus;
}

}  // namespace paradyse
