// A model: streams, and the parts that read and write them.  A value that a family makes of a
// config.json (model_from_config()), or that is put together in code (parts.h); it says nothing of
// ranks, nor of where anything lies.
#pragma once

#include <any>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/part_weights.h"
#include "paradyse/plan/detail/rope.h"
#include "paradyse/plan/detail/tiles.h"
#include "paradyse/plan/lora.h"

namespace paradyse {

// gelu: exact, by the error function.  swiglu, geglu (by tanh) and geglu_exact have two operands, a
// gate and what it multiplies; the others one.
enum class Activation { swiglu, gelu, gelu_tanh, relu, silu, geglu, geglu_exact };
constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu ||
         activation == Activation::geglu_exact;
}

// What a part computes: sizes and switches that builders and ops ask.  What its kind has not got
// stays as it is here.
struct PartShape {
  std::int64_t hidden = 0;    // H: columns of what it reads and writes
  std::int64_t heads = 0;     // N, query heads
  std::int64_t kv_heads = 0;  // K; divides N
  std::int64_t head_dim = 0;  // D
  std::int64_t ffn = 0;       // F
  std::int64_t vocab = 0;     // V
  Activation activation = Activation::swiglu;
  double norm_eps = 1e-6;
  double norm_offset = 0;            // added to the weights of its RMSNorms
  bool layer_norm = false;           // its norms with weights alone are LayerNorms, not RMSNorms
  bool post_norm = false;            // its norm comes after the residual sum, not before the part
  bool qk_norm = false;              // an RMSNorm of every query and key head
  bool qk_norm_wide = false;         // that norm is of all queries, and of all keys, of a token
  bool branch = false;               // it writes what it would add to what it reads
  bool padding_in_documents = true;  // embedding: false: padding_id would count for no position
  std::optional<Rope> rope = {};     // queries and keys are turned by their positions
  // Attention: tokens that a query sees to either side, itself one of them, or, causal, up to its
  // own; 0: all.
  std::int64_t window = 0;
  double score_scale = 0;            // attention: of q k; 0: 1 / sqrt(D)
  double score_cap = 0;              // attention: a score s becomes cap tanh(s / cap); 0: it stays
  double logit_cap = 0;              // head: so does a logit
  double attention_dropout = 0;      // attention: in training, of its probabilities
  double embedding_scale = 1;        // embedding: of the rows that are looked up
  std::string with = {};             // the stream of a branch, which it adds, too; "": none
  double dropout = 0;                // in training: of what it adds to its stream, or makes of it
  std::string dropout_shared = {};   // rows that differ in this dim alone share their mask
  std::int64_t positions = 0;        // embedding: learned, and how many; 0: none
  std::int64_t position_rows = 0;    // embedding: of the table, behind the vocabulary's
  std::int64_t position_offset = 0;  // embedding: position i has row i + offset of them
  std::int64_t segments = 0;         // embedding: rows behind those
  std::int64_t padding_id = -1;      // embedding: gets no gradient from being looked up; -1: none
  // Its norm is scaled and shifted, and what it adds to its stream multiplied, by 3H columns of
  // this stream from `condition_first` on: shift, scale, gate.  "": a norm with weights of its own.
  std::string condition = {};
  std::int64_t condition_first = 0;
  bool condition_once = false;  // shift and scale are the same H columns, and there is no gate
  std::string pair = {};        // attention: a bias of scores is made from this stream; "": none
  // Which rows count is said by what a batch brings (Stream::mask): of the stream that it attends
  // along, or that pairs are made of.  "": all do.
  std::string mask = {};
  bool gated_heads = false;    // attention: heads are multiplied by a sigmoid of the input
  std::int64_t channels = 0;   // outer product, triangle multiplication: of their operands
  std::int64_t added = 0;      // projection: last columns of its input, added to its products
  std::int64_t predicted = 0;  // flow head: of every so many columns the first `scored` have a
  std::int64_t scored = 0;     // target, the others NaN (0: all have)
  Tiles tiles = {};            // in which it is computed

  [[nodiscard]] bool gated() const { return is_gated(activation); }
  // Of q k, as attention multiplies it.
  [[nodiscard]] double scale_of_scores() const;
  friend bool operator==(const PartShape&, const PartShape&) = default;
};

// The kind of parts that attend along a dim of a grid.
inline constexpr const char* kAxialAttention = "axial_attention";
// And of those whose rows attend to all rows of the last stream that they read.
inline constexpr const char* kCrossAttention = "cross_attention";
// And of those that attend along a dim with one query a head for the whole line, the mean of its
// rows; heads share one key and value head (Jumper et al. 2021, algorithm 19).
inline constexpr const char* kGlobalAttention = "global_attention";

// And of those that make a stream of what a batch brings: the sum of products, each of the next
// columns of it.
inline constexpr const char* kProjection = "projection";

struct Part {
  std::string name;                 // plans, traces and costs call it so
  std::string kind;                 // which strategies build it
  std::vector<std::string> reads;   // streams; the first is the one whose rows it works on
  std::vector<std::string> writes;  // of none: it ends in a loss
  std::string along = {};  // the row dim that it must see in one run; "": every row is alike
  std::string input = {};  // what a batch brings for it, row for row of its stream; "": nothing
  PartShape shape = {};
  std::function<PartWeights(int domain)> weights;
};

// A tensor between parts.
struct Stream {
  std::string name;
  std::vector<std::string> rows;  // its row dims, as they are stored where nothing else is asked
  std::int64_t columns = 0;
  std::string home;  // the dim that is cut over all ranks where nothing else is asked; "": none
  // What a batch brings of its rows beside: 1 for those that count, 0 for others.  "": all do.
  std::string mask = {};
};

struct ModelPart {
  std::int64_t layer = -1;  // -1: before or after the layers
  std::uint32_t site = 0;   // of its dropout: no two parts of a model draw the same numbers
  std::shared_ptr<const Part> part;  // layers that are alike share it
};

// Layers that are alike, one after the other.  Most models are one such stack.
struct Stack {
  std::int64_t first = 0;  // its first layer
  std::int64_t layers = 0;
  std::vector<std::shared_ptr<const Part>> parts = {};  // of each, in their order
};

// How many tokens a document may have, and what says so; 0: any number.
struct LengthLimit {
  std::int64_t tokens = 0;
  std::string why = {};  // "the model has learned 512 positions"

  [[nodiscard]] bool allows(std::int64_t length) const { return tokens == 0 || length <= tokens; }
};

// What cannot be had of a model here.
struct ModelLimits {
  LengthLimit longest = {};            // of a document
  std::int64_t trained_positions = 0;  // max_position_embeddings, which may be gone beyond
  bool gpus = true;                    // false: it runs on CPUs alone
};

// What a loss is of, for people.
struct ModelWords {
  std::string items = "documents";  // of a batch
  std::string scored = "predicted tokens";
  bool perplexity = true;  // the loss is a cross-entropy, whose exponential says something
};

// What files that hold a model's weights may call them, or hold besides.
struct OtherNames {
  // Part of a name, and what older files have there: "pair_stack.", "core.".
  std::vector<std::pair<std::string, std::string>> older = {};
  // How names begin that no part of the model uses: "structure_module.".
  std::vector<std::string> unused = {};
};

// Sizes of a model that are to be others.  A family changes some of them (Model::of_sizes).
struct OtherSizes {
  std::optional<std::int64_t> layers = {};
  std::optional<std::int64_t> hidden = {};  // its MLPs become as much wider or narrower
  std::optional<std::int64_t> kv_heads = {};
  std::optional<std::int64_t> vocab = {};
  std::optional<std::int64_t> positions = {};  // that it learns, if it learns any
  std::optional<std::int64_t> window = {};     // of attention; 0: it sees all
};

struct Model {
  std::string name = {};    // its architecture, as plans have it: "llama", "evoformer-multimer"
  std::string family = {};  // who reads its data and judges its gradients: "text", "stdit", ...
  std::string sha256 = {};  // of what says its mathematics: names it in plans and profiles
  std::string config = {};  // the config.json that makes it, as JSON; "": put together in code
  std::any shape = {};      // what its family made it of: for the family's files and its judge
  std::vector<Stream> streams;
  std::vector<ModelPart> parts;  // in the order in which they run
  std::int64_t layers = 0;
  bool causal = true;
  bool masked_lm = false;           // labels come with the tokens, each for its own place
  double initializer_range = 0.02;  // standard deviation of matrices before training
  ModelLimits limits = {};
  ModelWords words = {};
  std::function<Model(const OtherSizes& sizes)> of_sizes = {};  // of its family; see with_sizes()
  OtherNames other_names = {};
  std::optional<Lora> lora = {};  // its matrices are frozen, and adapters trained

  // Token ids: of the first part, which looks them up.
  [[nodiscard]] std::int64_t vocab() const { return parts.front().part->shape.vocab; }
  // Positions that it has learned; 0: none, they are rotated, or it has none.
  [[nodiscard]] std::int64_t learned_positions() const {
    return parts.front().part->shape.positions;
  }
  // In which all its parts are computed.
  [[nodiscard]] Tiles tiles() const {
    return parts.empty() ? Tiles{} : parts.front().part->shape.tiles;
  }
  // Throw std::invalid_argument, naming those there are, for another name.
  [[nodiscard]] const Stream& stream(const std::string& called) const;
  [[nodiscard]] const std::shared_ptr<const Part>& part(const std::string& called) const;
  // In the order in which they run; a model without layers has none.
  [[nodiscard]] std::vector<Stack> stacks() const;
  // After how many layers the kinds of its parts repeat, where layers differ in parts of one name
  // (in a window of attention); 1: they do not, or have other parts altogether.
  [[nodiscard]] std::int64_t period() const;
  // What a batch brings for a sample, beside or in place of tokens: row dims as those of the stream
  // that the part with that input works on, columns as its first matrix reads, or as what it
  // predicts.
  [[nodiscard]] std::vector<Stream> inputs() const;
  // Whether that is what such an input says of a stream's rows.
  [[nodiscard]] bool is_mask(const std::string& input) const;
  // A batch brings samples with dims of their own, not documents of tokens.
  [[nodiscard]] bool of_samples() const;
  // Whether rows of a stream have it; "batch": a batch may hold several samples.
  [[nodiscard]] bool has_dim(const std::string& dim) const;
  // [part] What it writes is read, or it ends in a loss: the others need not run.
  [[nodiscard]] std::vector<bool> needed() const;
  // Rows of a sample with such dims, which plans call its length: of the first stream, all but the
  // batch's.  Throws std::out_of_range where a dim is missing.
  [[nodiscard]] std::int64_t rows(const DimSizes& dims) const;
  // Sizes that its layers compute with most: those of the first attention, ffn of the first MLP.
  [[nodiscard]] PartShape typical_part() const;
  // Whether the head is the embedding's matrix.
  [[nodiscard]] bool tied() const;
};

// The model that the text of a `config.json` describes; `source` names it in messages; `notes` get
// a sentence for whatever is taken otherwise than the file says.  Throws std::invalid_argument that
// names the key and what would be accepted.
Model model_from_config(
    const std::string& json, const std::string& source, std::vector<std::string>* notes = nullptr);

// The same model, computed in other tiles; with other dropout of residuals and embeddings, or of
// attention's probabilities; without any.
Model with_tiles(const Model& model, Tiles tiles);
Model with_dropout(const Model& model, double probability);
Model with_attention_dropout(const Model& model, double probability);
Model without_dropout(const Model& model);
// Of other sizes, or of so many layers.  Of several stacks each keeps its share of them, and at
// least one layer, so that a model of two has two or more.  Throws std::invalid_argument for a size
// that its family does not change, or cannot have; without of_sizes for all but the layers of one
// stack.
Model with_sizes(const Model& model, const OtherSizes& sizes);
Model with_layers(const Model& model, std::int64_t layers);

// Throws std::invalid_argument for a model whose adapters have dropout, which is not implemented;
// the message says how to train without it.
void expect_trainable(const Model& model);

// Elements of all parameters that `rank` of a domain stores, tied ones once.
std::int64_t stored_elements(const Model& model, int domain, int rank);
// Of these, what is trained.
std::int64_t trained_elements(const Model& model, int domain, int rank);
// Of norms, biases and adapters, which every rank stores whole; and of all other parameters
// together.
std::int64_t vector_elements(const Model& model);
std::int64_t matrix_elements(const Model& model);
std::int64_t trained_vector_elements(const Model& model);
std::int64_t trained_matrix_elements(const Model& model);

// Rank r of p has query heads [floor(r N / p), floor((r + 1) N / p)) and every key/value head that
// one of them reads; where p does not divide K, neighbours share some.  `shares`: instead, of the
// query heads each rank its share, rounded; for activations alone, since weights are cut evenly.
std::vector<Heads> own_heads(
    const PartShape& shape, int ranks, std::span<const double> shares = {});
// All ranks have all heads.
std::vector<Heads> all_heads(const PartShape& shape, int ranks);

}  // namespace paradyse
