// Documents: lists of token ids read from text or JSONL, in the order in which they are trained on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

using Tokens = std::vector<std::int32_t>;

// The label that does not count.
inline constexpr std::int32_t kNoLabel = -100;

enum class TooLong { cut, skip, refuse };
enum class Order { shuffled, sorted, curriculum };

// What is read and how.
struct DataOptions {
  std::filesystem::path path;   // folder of text files (read recursively), or a .jsonl file
  std::int64_t min_tokens = 1;  // shorter documents are skipped, and counted
  std::int64_t max_tokens = 0;  // 0: no limit
  TooLong too_long = TooLong::cut;
  std::int64_t vocab = 256;  // ids must be below
  bool labels = false;       // every document must bring a label for each token: a masked LM
};

// What became of what was found.
struct DataCounts {
  std::int64_t documents = 0;  // kept
  std::int64_t tokens = 0;     // kept
  std::int64_t cut = 0;        // documents cut to max_tokens
  std::int64_t skipped_long = 0;
  std::int64_t skipped_short = 0;
};

struct Corpus {
  std::vector<Tokens> documents;
  std::vector<Tokens> labels;      // [document], as many as its tokens; empty: no document has any
  std::vector<std::string> names;  // file, or file:line: for messages
  DataCounts counts;
};

// Reads all documents. A folder: every regular file below it in sorted order of path, its bytes as
// tokens. A .jsonl file: each line an object with `tokens` (ids) or else `text` (its UTF-8 bytes as
// tokens); other keys and blank lines are ignored.
//
// Beside `tokens` a line may have `labels`, as long (ids or kNoLabel), unshifted as Hugging Face
// takes them: a model that predicts the next token scores token i against label i + 1.  Where some
// lines have labels, those of a line without are its tokens: it predicts its own next ones.  With
// options.labels every line must have them, and folders are refused.
//
// Throws std::runtime_error naming file, line and remedy: nothing there or nothing kept, not
// readable, a link to a folder or to nothing, no JSON, neither key, an id that is negative, not an
// integer or not below `vocab`, labels without tokens or of another number, bytes with vocab < 256,
// a document over max_tokens where `too_long` is refuse.
Corpus read_corpus(const DataOptions& options);

// The order of a run: index into the corpus for each of `count` draws, epoch after epoch, the same
// for the same seed on every machine.
//   shuffled:   each epoch a new permutation
//   sorted:     each epoch short to long
//   curriculum: the first `curriculum_share` of `count` short to long (its documents drawn as
//               shuffled would, then sorted by length), the rest shuffled
// Throws std::invalid_argument for a negative count, draws from no documents, and a share that is
// not from 0 to 1.
std::vector<std::int64_t> document_order(
    const std::vector<std::int64_t>& lengths,
    Order order,
    std::int64_t count,
    std::uint64_t seed,
    double curriculum_share = 0.0);

}  // namespace paradyse
