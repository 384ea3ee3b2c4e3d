// Documents: lists of token ids, in files that stay where they are until a document is asked for.
// src/run/data/: data_files.h, which files; document_file.h, what each kind of them gives;
// json_line.h, what a line means; data_report.h, what is told of it; draws.h, in which order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paradyse {

using Tokens = std::vector<std::int32_t>;

// The label that does not count.
inline constexpr std::int32_t kNoLabel = -100;

// What becomes of a document over max_tokens.  split: pieces of at most so many, each a document of
// its own.  Of a model that predicts the next token a later piece begins with the last token of the
// piece before it, so that every label is scored once; of a masked LM pieces share nothing.
enum class TooLong { cut, skip, refuse, split };
enum class Order { shuffled, sorted, curriculum };

// What is read and how.
struct DataOptions {
  // Folders (read recursively), files, and patterns of them (*, ?, [...]), in this order.
  std::vector<std::filesystem::path> paths;
  // Folders and files that are no data where they are met below a folder: the output of runs, the
  // model.
  std::vector<std::filesystem::path> no_data = {};
  std::int64_t min_tokens = 1;  // shorter documents are skipped, and counted
  std::int64_t max_tokens = 0;  // 0: no limit
  TooLong too_long = TooLong::cut;
  std::int64_t vocab = 256;        // ids must be below
  bool labels = false;             // every document must bring a label for each token: a masked LM
  bool learned_positions = false;  // padding before a document would move it to other positions
  std::int64_t window = 0;         // max_position_embeddings: longer documents are counted; 0: none
  // A file of the model's tokenizer: text, whose tokens are bytes, is refused.  "": it is taken.
  std::string tokenizer = {};
  // The folder of the model's tokenizer, which prepared folders name; "": none.
  std::filesystem::path tokenizer_folder = {};
  std::optional<std::int32_t> end_id = std::nullopt;  // put after each text
};

struct LeftOut {
  std::int64_t files = 0;
  std::string first;  // one of them
};

// What became of what was found.
struct DataCounts {
  std::int64_t documents = 0;  // kept
  std::int64_t tokens = 0;     // kept
  std::int64_t labels = 0;     // kept that are scored
  std::int64_t cut = 0;        // documents cut to max_tokens
  std::int64_t cut_tokens = 0;
  std::int64_t cut_labels = 0;
  std::int64_t unlabelled = 0;  // documents with a label that is scored before the cut, none after
  std::int64_t split = 0;       // documents split into pieces
  std::int64_t pieces = 0;      // of these
  std::int64_t skipped_long = 0;
  std::int64_t skipped_long_tokens = 0;
  std::int64_t skipped_short = 0;
  std::int64_t skipped_short_tokens = 0;
  std::int64_t padding = 0;        // tokens left out by attention_mask
  std::int64_t beyond_window = 0;  // kept documents longer than the window
  std::int64_t texts = 0;          // documents found as text: bytes as tokens
  std::int64_t text_files = 0;
  std::int64_t jsonl_files = 0;
  std::int64_t token_files = 0;  // Megatron's and llm.c's
  // false: labels, cut_labels and unlabelled are not known, since that would need all of the files.
  bool labels_counted = true;
  std::int64_t min_tokens = 0;  // of the options
  std::int64_t max_tokens = 0;
  std::int64_t window = 0;
  std::int64_t vocab = 0;
  std::optional<std::int32_t> end_id = std::nullopt;
  std::map<std::string, LeftOut> left_out = {};  // by why
  std::vector<std::string> unused_keys = {};     // of lines: only data about data
};

// What a rank takes of a document.
struct Document {
  Tokens tokens;
  std::optional<Tokens> labels = std::nullopt;  // as many as tokens
};

// Documents by their numbers.  Copies share what they know, which is little: where each document
// lies.  Any threads may ask at once.
class Corpus {
 public:
  Corpus();  // of no documents
  // Of these, in memory.  `labels`: a list for each, as many as its tokens; or none at all.
  explicit Corpus(std::vector<Tokens> documents, std::vector<Tokens> labels = {});

  [[nodiscard]] std::int64_t size() const;
  [[nodiscard]] std::int64_t length(std::int64_t document) const;  // tokens
  // Whether documents have labels: all have, or none.
  [[nodiscard]] bool labelled() const;
  // The document, read from its file.  Throws std::runtime_error naming it: a file that was changed
  // or is gone since the corpus was read, and a token that is none of the vocabulary's.
  [[nodiscard]] Document document(std::int64_t document) const;
  // Its labels that a token is scored against; of one that was read already.  Throws likewise.
  [[nodiscard]] std::int64_t scored(std::int64_t document) const;
  [[nodiscard]] std::int64_t scored(const Document& read) const;
  // File, or file:line: for messages.
  [[nodiscard]] std::string name(std::int64_t document) const;
  // A number by which a document is known whatever other files there are: of the name of its file
  // below the path that was given, and its place there.  Pieces of a document have the same.
  [[nodiscard]] std::uint64_t key(std::int64_t document) const;
  // [path of DataOptions::paths] The number of documents of it and those before it.
  [[nodiscard]] const std::vector<std::int64_t>& ends() const;
  // A hash of tokens and labels; of token files, of their indices, sizes and some pages
  // (docs/reference/data.md).
  [[nodiscard]] std::string fingerprint() const;

  DataCounts counts;

 private:
  friend class CorpusReader;
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

// Finds all documents: of text and lines the length of each, by reading all of them once; of token
// files only the index.
//
// A folder gives the files below it in sorted order of path: .jsonl and .ndjson files, and .json
// files that hold such lines, line by line, else text, each file a document, its bytes as tokens.
// Beside JSONL only .txt files count as text.  Names that begin with a dot, files that are no text
// (a NUL byte, pictures, archives), `no_data`, folders of runs and a file that was read already are
// left out and counted.  What looks like data that is not read (Parquet, compressed text, ...) is
// refused, as is every link to a folder or to nothing.
//
// Token files: Megatron-core's X.bin with X.idx, named by either or by X; llm.c's .bin; and
// prepared folders of paradyse-data, which have a data.json.  X.labels.bin and .idx beside X.bin
// say of each token whether its label counts.
//
// A line is an object with `tokens` or `input_ids` (ids), or else `text` (its UTF-8 bytes as
// tokens); null counts as absent.  Beside ids a line may have
//   labels          as long (ids or kNoLabel), unshifted as Hugging Face takes them: a model that
//                   predicts the next token scores token i against label i + 1.  Where some lines
//                   have labels, those of a line without are its tokens.  With options.labels every
//                   line must have them, and text is refused.
//   attention_mask  zeros at an end are padding, which is left out with its labels
//   loss_mask, completion_mask, assistant_masks, assistant_mask, response_mask
//                   0: that token's label is kNoLabel
// Other keys that would change what is computed (position_ids that do not count from 0,
// token_type_ids that are not 0, weights that are not 1, lists named like labels, masks, positions
// or segments) are refused by name; what is only data about data is named in counts.
//
// Throws std::runtime_error naming file, line and remedy for what is refused: nothing there or
// nothing kept, not readable, no JSON, a NUL byte, UTF-16, half a surrogate pair, a key twice, an
// id that is negative, not an integer or not below `vocab`, labels without tokens or of another
// number, bytes with vocab < 256 or a tokenizer, a document over max_tokens where `too_long` is
// refuse.
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
