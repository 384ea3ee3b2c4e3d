// Documents read, cut to size, and put into an order.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/cuts.h"
#include "paradyse/plan/index.h"
#include "paradyse/run/data.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/refuse.h"
#include "src/plan/base/text_match.h"
#include "src/run/data/data_files.h"
#include "src/run/data/json_line.h"

namespace paradyse {

namespace {

namespace fs = std::filesystem;

std::ifstream opened(const fs::path& path) {
  if (const std::string why = why_not_readable(path); !why.empty()) {
    refuse(path.string(), "cannot be read: " + why);
  }
  return {path, std::ios::binary};
}

// Makes a corpus of what it is given, one document after the other.
class Taker {
 public:
  explicit Taker(const DataOptions& options) : options_(options) {
    if (options.too_long == TooLong::split && options.max_tokens == 1 && !options.labels) {
      throw std::runtime_error(
          "documents would be split into pieces of 1 token, which predict nothing; give a limit of "
          "at least 2");
    }
    DataCounts& counts = corpus_.counts;
    counts.min_tokens = options.min_tokens;
    counts.max_tokens = options.max_tokens;
    counts.window = options.window;
    counts.vocab = options.vocab;
  }

  DataCounts& counts() { return corpus_.counts; }
  Corpus corpus() && { return std::move(corpus_); }

  // Keeps a document, or as much of it as the options say, and counts what became of it.
  void take(LineDocument document, const std::string& where) {
    DataCounts& counts = corpus_.counts;
    Tokens& tokens = document.tokens;
    if (document.text) {
      ++counts.texts;
      if (options_.end_id && !tokens.empty()) {
        tokens.push_back(*options_.end_id);
        counts.end_id = options_.end_id;
      }
    }
    counts.padding += document.padding;
    const auto length = std::ssize(tokens);
    if (length < options_.min_tokens) {
      ++counts.skipped_short;
      counts.skipped_short_tokens += length;
      return;
    }
    if (options_.max_tokens == 0 || length <= options_.max_tokens) {
      keep(std::move(document), where);
      return;
    }
    switch (options_.too_long) {
      case TooLong::cut: {
        const std::int64_t labels = scored(document);
        counts.cut_tokens += length - options_.max_tokens;
        ++counts.cut;
        LineDocument begin = piece(document, {0, options_.max_tokens});
        const std::int64_t left = scored(begin);
        counts.cut_labels += labels - left;
        counts.unlabelled += labels > 0 && left == 0 ? 1 : 0;
        keep(std::move(begin), where);
        return;
      }
      case TooLong::skip:
        ++counts.skipped_long;
        counts.skipped_long_tokens += length;
        return;
      case TooLong::split: {
        ++counts.split;
        const std::int64_t shared = options_.labels ? 0 : 1;
        for (std::int64_t begin = 0; begin + shared < length;
             begin += options_.max_tokens - shared) {
          ++counts.pieces;
          keep(
              piece(document, {begin, std::min(begin + options_.max_tokens, length)}),
              where + ", from token " + std::to_string(begin));
        }
        return;
      }
      case TooLong::refuse:
        refuse(
            where,
            "has " + std::to_string(length) + " tokens, more than the " +
                std::to_string(options_.max_tokens) +
                " allowed; raise the limit, or let long documents be cut or skipped or split");
    }
  }

 private:
  static LineDocument piece(const LineDocument& document, Interval tokens) {
    const auto part = [&](const Tokens& list) {
      return Tokens(list.begin() + tokens.begin, list.begin() + tokens.end);
    };
    LineDocument one{.tokens = part(document.tokens)};
    if (document.labels) {
      one.labels = part(*document.labels);
    }
    return one;
  }

  // Labels that a token is scored against.
  [[nodiscard]] std::int64_t scored(const LineDocument& document) const {
    const std::int64_t first = options_.labels ? 0 : 1;
    if (!document.labels) {
      return std::max<std::int64_t>(0, std::ssize(document.tokens) - first);
    }
    const Tokens& labels = *document.labels;
    return std::ssize(labels) <= first
               ? 0
               : std::count_if(labels.begin() + first, labels.end(), [](std::int32_t label) {
                   return label != kNoLabel;
                 });
  }

  void keep(LineDocument document, const std::string& name) {
    ++corpus_.counts.documents;
    corpus_.counts.tokens += std::ssize(document.tokens);
    corpus_.counts.labels += scored(document);
    corpus_.counts.beyond_window +=
        options_.window > 0 && std::ssize(document.tokens) > options_.window ? 1 : 0;
    if (document.labels && corpus_.labels.empty()) {
      corpus_.labels = corpus_.documents;  // those before it predict their own tokens
    }
    if (document.labels || !corpus_.labels.empty()) {
      corpus_.labels.push_back(document.labels ? *std::move(document.labels) : document.tokens);
    }
    corpus_.documents.push_back(std::move(document.tokens));
    corpus_.names.push_back(name);
  }

  const DataOptions& options_;
  Corpus corpus_;
};

void read_lines(
    Taker& taker, const fs::path& path, const DataOptions& options, UnusedKeys& unused) {
  std::ifstream stream = opened(path);
  std::string line;
  for (std::int64_t number = 1; std::getline(stream, line); ++number) {
    if (number == 1) {
      const std::string why = foreign_format(line);
      if (!why.empty()) {
        refuse(path.string(), why);
      }
    }
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = path.string() + ":" + std::to_string(number);
    taker.take(line_document(line, options, where, unused), where);
  }
  if (stream.bad()) {
    refuse(path.string(), "cannot be read to its end");
  }
  ++taker.counts().jsonl_files;
}

std::string bytes_of(const fs::path& path) {
  std::ifstream stream = opened(path);
  std::string bytes;
  std::vector<char> chunk(1 << 20);
  while (stream.read(chunk.data(), std::ssize(chunk)) || stream.gcount() > 0) {
    bytes.append(chunk.data(), idx(stream.gcount()));
  }
  if (stream.bad()) {
    refuse(path.string(), "cannot be read to its end");
  }
  return bytes;
}

void read_text(Taker& taker, const DataFile& file, const DataOptions& options) {
  const std::string where = file.path.string();
  const std::string bytes = bytes_of(file.path);
  const std::string why = no_text(bytes);
  if (!why.empty()) {
    if (file.text) {
      refuse(where, why);
    }
    leave_out(taker.counts().left_out, kBinary, file.path);
    return;
  }
  taker.take({.tokens = byte_tokens(bytes, options, where), .text = true}, where);
  ++taker.counts().text_files;
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
  Taker taker(options);
  DataFiles files = data_files(options);
  taker.counts().left_out = std::move(files.left_out);
  UnusedKeys unused;
  for (const DataFile& file : files.files) {
    if (file.lines) {
      read_lines(taker, file.path, options, unused);
    } else {
      read_text(taker, file, options);
    }
  }
  taker.counts().unused_keys = unused.names();
  Corpus corpus = std::move(taker).corpus();
  if (corpus.documents.empty()) {
    std::vector<std::string> paths;
    for (const fs::path& path : options.paths) {
      paths.push_back(path.string());
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
        joined(paths, ", "),
        "has no document to use: " + (what.empty() ? "it is empty" : joined(what, ", ")) +
            "; give a folder of text files or a .jsonl file, or change the limits");
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
