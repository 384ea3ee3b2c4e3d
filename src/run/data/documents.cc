#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/index.h"
#include "paradyse/run/data.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::int64_t kByteValues = 256;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw std::runtime_error(where + ": " + what);
}

std::ifstream opened(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    refuse(path.string(), "cannot be read; check that it is there and readable");
  }
  return stream;
}

// Files below `folder`, sorted by path, byte by byte: the same on every machine and in every
// locale.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path());
      } else if (entry.is_symlink()) {  // skipping it would silently train on less
        refuse(
            entry.path().string(),
            "is a link to a folder or to nothing, which is not followed; link files, or remove it");
      }
    }
  } catch (const fs::filesystem_error& error) {
    refuse(folder.string(), std::string("cannot be read: ") + error.what());
  }
  std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
    return a.native() < b.native();
  });
  return files;
}

Tokens byte_tokens(std::string_view bytes, const DataOptions& options, const std::string& where) {
  if (options.vocab < kByteValues) {
    refuse(
        where,
        "is text, whose tokens are bytes, but the vocabulary has " + std::to_string(options.vocab) +
            " ids; take a model with vocab_size of at least 256, or give token ids as .jsonl");
  }
  Tokens tokens;
  tokens.reserve(bytes.size());
  for (const char byte : bytes) {
    tokens.push_back(static_cast<unsigned char>(byte));
  }
  return tokens;
}

// The ids under `key`; negative ones only where kNoLabel is `allowed`.
Tokens id_tokens(
    const json& ids,
    const DataOptions& options,
    const std::string& where,
    const std::string& key = "tokens",
    bool no_label_allowed = false) {
  if (!ids.is_array()) {
    refuse(where, key + " is " + excerpt(ids) + "; it takes a list of ids");
  }
  // Ids are 32 bits wide, whatever the vocabulary.
  const std::int64_t limit =
      std::min<std::int64_t>(options.vocab, std::numeric_limits<std::int32_t>::max());
  Tokens tokens;
  tokens.reserve(ids.size());
  for (const json& id : ids) {
    // Compared as unsigned: a number over 2^63 would wrap to a negative one.
    const bool fits = (id.is_number_integer() && (id.is_number_unsigned() || id >= 0) &&
                       std::cmp_less(id.get<std::uint64_t>(), limit)) ||
                      (no_label_allowed && id == kNoLabel);
    if (!fits) {
      refuse(
          where,
          (no_label_allowed ? "label " : "token ") + std::to_string(tokens.size()) + " is " +
              excerpt(id) + "; an id is a whole number from 0 to " + std::to_string(limit - 1) +
              (no_label_allowed ? ", or -100 for no label"
                                : ": tokenize with the tokenizer of this model"));
    }
    tokens.push_back(id.get<std::int32_t>());
  }
  return tokens;
}

struct Document {
  Tokens tokens;
  std::optional<Tokens> labels = std::nullopt;
};

// The document of one line of a .jsonl file.
Document line_document(
    const std::string& line, const DataOptions& options, const std::string& where) {
  json record;
  try {
    record = json::parse(line);
  } catch (const json::exception&) {
    refuse(where, "is no JSON (in UTF-8); each line takes one object");
  }
  const auto has = [&](const char* key) { return record.is_object() && record.contains(key); };
  if (options.labels && !(has("tokens") && has("labels"))) {
    refuse(
        where,
        "is " + excerpt(record) +
            "; this model predicts masked tokens: a line takes an object with tokens and labels");
  }
  if (has("tokens")) {
    Document document{.tokens = id_tokens(record["tokens"], options, where)};
    if (has("labels")) {
      document.labels = id_tokens(record["labels"], options, where, "labels", true);
      if (document.labels->size() != document.tokens.size()) {
        refuse(
            where,
            "has " + std::to_string(document.tokens.size()) + " tokens and " +
                std::to_string(document.labels->size()) +
                " labels; every token takes one (-100: none)");
      }
    }
    return document;
  }
  if (has("labels")) {
    refuse(
        where,
        "has labels but no tokens; labels are ids, one for each id of tokens: give tokens, or take "
        "the labels out");
  }
  if (has("text")) {
    const json& text = record["text"];
    if (!text.is_string()) {
      refuse(where, "text is " + excerpt(text) + "; it takes a string");
    }
    return {.tokens = byte_tokens(text.get_ref<const std::string&>(), options, where)};
  }
  refuse(where, "is " + excerpt(record) + "; it takes an object with tokens (ids) or text");
}

// Keeps a document, or as much of it as the options say, and counts what became of it.
void take(Corpus& corpus, Document document, const DataOptions& options, const std::string& where) {
  Tokens& tokens = document.tokens;
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (length < options.min_tokens) {
    ++corpus.counts.skipped_short;
    return;
  }
  if (options.max_tokens > 0 && length > options.max_tokens) {
    switch (options.too_long) {
      case TooLong::cut:
        tokens.resize(idx(options.max_tokens));
        if (document.labels) {
          document.labels->resize(tokens.size());
        }
        ++corpus.counts.cut;
        break;
      case TooLong::skip:
        ++corpus.counts.skipped_long;
        return;
      case TooLong::refuse:
        refuse(
            where,
            "has " + std::to_string(length) + " tokens, more than the " +
                std::to_string(options.max_tokens) +
                " allowed; raise the limit, or let long documents be cut or skipped");
    }
  }
  ++corpus.counts.documents;
  corpus.counts.tokens += static_cast<std::int64_t>(tokens.size());
  if (document.labels && corpus.labels.empty()) {
    corpus.labels = corpus.documents;  // those before it predict their own tokens
  }
  if (document.labels || !corpus.labels.empty()) {
    corpus.labels.push_back(document.labels ? *std::move(document.labels) : tokens);
  }
  corpus.documents.push_back(std::move(tokens));
  corpus.names.push_back(where);
}

void read_lines(Corpus& corpus, const DataOptions& options) {
  std::ifstream stream = opened(options.path);
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = options.path.string() + ":" + std::to_string(number);
    take(corpus, line_document(line, options, where), options, where);
  }
  if (stream.bad()) {
    refuse(options.path.string(), "cannot be read to its end");
  }
}

void read_folder(Corpus& corpus, const DataOptions& options) {
  for (const fs::path& path : files_below(options.path)) {
    std::ifstream stream = opened(path);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    if (stream.bad()) {
      refuse(path.string(), "cannot be read to its end");
    }
    take(corpus, {.tokens = byte_tokens(bytes, options, path.string())}, options, path.string());
  }
}

// A whole number below `bound`, every one as likely.  The standard's own distributions give other
// numbers in other libraries.
std::uint64_t draw_below(std::uint64_t bound, std::mt19937_64& random) {
  const std::uint64_t uneven = (0 - bound) % bound;  // 2^64 mod bound: so many draws are redrawn
  std::uint64_t draw = random();
  while (draw < uneven) {
    draw = random();
  }
  return draw % bound;
}

// Draws `count` of the documents 0 .. n - 1, epoch after epoch, each a new permutation.
std::vector<std::int64_t> shuffled_epochs(std::int64_t n, std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> epoch(idx(n));
  std::vector<std::int64_t> order;
  order.reserve(idx(count));
  while (std::cmp_less(order.size(), count)) {
    std::iota(epoch.begin(), epoch.end(), 0);
    for (std::size_t i = epoch.size(); i > 1; --i) {  // Fisher and Yates; Durstenfeld 1964
      std::swap(epoch[i - 1], epoch[idx(draw_below(i, random))]);
    }
    const auto missing = idx(count) - order.size();
    const auto taken = static_cast<std::ptrdiff_t>(std::min(missing, epoch.size()));
    order.insert(order.end(), epoch.begin(), epoch.begin() + taken);
  }
  return order;
}

}  // namespace

Corpus read_corpus(const DataOptions& options) {
  const std::string where = options.path.string();
  const char* const accepted = "give a folder of text files or a .jsonl file";
  std::error_code error;
  const fs::file_status status = fs::status(options.path, error);
  Corpus corpus;
  if (options.labels && fs::is_directory(status)) {
    refuse(
        where,
        "is a folder of text, but this model predicts masked tokens; give a .jsonl file with "
        "{\"tokens\": [...], \"labels\": [...]} a line");
  }
  if (fs::is_directory(status)) {
    read_folder(corpus, options);
  } else if (!fs::exists(status)) {
    refuse(where, std::string("is not there; ") + accepted);
  } else if (options.path.extension() == ".jsonl") {
    read_lines(corpus, options);
  } else {
    refuse(where, std::string("is neither a folder nor named .jsonl; ") + accepted);
  }
  if (corpus.documents.empty()) {
    refuse(
        where,
        "has no document to use: " + std::to_string(corpus.counts.skipped_short) +
            " were shorter than " + std::to_string(options.min_tokens) + " tokens, " +
            std::to_string(corpus.counts.skipped_long) + " longer than " +
            std::to_string(options.max_tokens) + "; " + accepted + ", or change the limits");
  }
  return corpus;
}

std::vector<std::int64_t> document_order(
    const std::vector<std::int64_t>& lengths,
    Order order,
    std::int64_t count,
    std::uint64_t seed,
    double curriculum_share) {
  if (count < 0 || (count > 0 && lengths.empty())) {
    throw std::invalid_argument(
        "document_order: " + std::to_string(count) + " draws from " +
        std::to_string(lengths.size()) + " documents; it takes a count from 0, and documents");
  }
  if (!(curriculum_share >= 0 && curriculum_share <= 1)) {  // a NaN is neither
    throw std::invalid_argument(
        "document_order: curriculum_share is " + std::to_string(curriculum_share) +
        "; it takes a share from 0 to 1");
  }
  const auto n = static_cast<std::int64_t>(lengths.size());
  // Stable: which of two equally long documents comes first must not depend on the library.
  const auto shorter = [&lengths](std::int64_t a, std::int64_t b) {
    return lengths[idx(a)] < lengths[idx(b)];
  };
  switch (order) {
    case Order::shuffled:
      return shuffled_epochs(n, count, seed);
    case Order::sorted: {
      std::vector<std::int64_t> epoch(lengths.size());
      std::iota(epoch.begin(), epoch.end(), 0);
      std::stable_sort(epoch.begin(), epoch.end(), shorter);
      std::vector<std::int64_t> draws(idx(count));
      for (std::size_t i = 0; i < draws.size(); ++i) {
        draws[i] = epoch[i % epoch.size()];
      }
      return draws;
    }
    case Order::curriculum: {
      std::vector<std::int64_t> draws = shuffled_epochs(n, count, seed);
      const auto first = std::llround(curriculum_share * static_cast<double>(count));
      std::stable_sort(draws.begin(), draws.begin() + first, shorter);
      return draws;
    }
  }
  throw std::logic_error("document_order: Order with an unknown value");
}

}  // namespace paradyse
