// A part of a model (embedding, attention, MLP, head) as a straight list of operations on named,
// placed matrices; the quantities that follow from the list are folds over it (cost.h).
//
// Words.  A *stream* is a tensor that outlives a part ("x": the residual stream); what a part reads
// and writes of them are its *ports*.  A *value* is a tensor of the program, laid out over the
// program's group (weights: over the weight domain); ops see it as a matrix [rows, cols].  An op
// *needs* the values that its adjoint reads.  A value is *saved* when it lives from the forward to
// the backward pass.  A *seat* is where a rank sits: its number in the group and in the weight
// domain.
//
// Letters: T tokens of the micro-batch, H hidden width, N/K query/key heads, D width of a head, F
// feed-forward width, V rows of a vocabulary.  Next: op_traits.h, schedule.h, strategy.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/detail/layout.h"
#include "paradyse/plan/detail/part_weights.h"
#include "paradyse/plan/detail/transfer.h"
#include "paradyse/plan/model.h"

namespace paradyse {

// What planning knows of each: op_traits.h.
enum class OpKind {
  embed,           // () -> x: the sum of rows by token id, position and segment; the table in tiles
  norm,            // (x) -> xn: RMSNorm with one vector, LayerNorm with two
  hold_weights,    // () -> w: this rank's own stack, in place
  gather_weights,  // () -> w: rows of the stack from all ranks of the weight domain
  linear,   // (x, w...) -> y = x w^T, columns from the op's terms; or y = x w (`transposed`), which
            // in place is added to its last operand; with a `tile` some rows of it
  bias,     // (y) -> y + `scale` times entries of vectors, of each rank its own
  qk_norm,  // (qkv) -> qkv with every query and key head normed, by one vector each
  rope,     // (qkv) -> qkv with rotated queries and keys
  redistribute,     // (x) -> x placed otherwise
  attention,        // (qkv) or (q, kv), and bias -> o, l: softmax attention in each document, or
                    // along each line (attention_blocks); l = log-sum-exp; with `probability` P
                    // has dropout
  ring_attention,   // (q, kv) -> o, l: the same, keys and values going round a ring of ranks
  score_attention,  // (q, kv) -> o, p: keys, then values going round; p = all probabilities
  swiglu,           // (gate | up) -> silu(gate) * up, or gelu(gate) * up of a GeGLU
  activation,       // (h) -> the model's activation function of h
  dropout,          // (y) -> y with some elements zero and the others larger
  add,              // (x, y) -> x + y
  adaptive_norm,    // (x, c) -> xn: normed, then scaled and shifted by a row of c
  adaptive_gate,    // (y, c) -> y times a row of c
  gate,             // (y, g) -> y sigmoid(g)
  line_mean,        // (x) -> the mean of the rows of each line
  spread,           // (y) -> a line's row given to every row of it; with a `tile` to some rows
  outer_product,    // (a, b) -> o, `scale` times the sum over sequences of outer products
  triangle,         // (a, b) -> o, of each channel the product of two matrices
  mask_rows,        // (y) -> y with the rows zero that do not count
  mask_pairs,       // (y) -> y, of means over all sequences those over the ones that count
  batch_input,      // () -> x, of what the batch brings the tensor of x's name; it has no gradient
  flow_matching,    // (y, v) -> d, the gradient of the loss to y: of squared differences
  cross_entropy,    // (xn) -> d, the gradient of the loss to xn; logits in tiles, never whole; a
                    // vector is added to them
  count,            // of kinds
};

// What an element of a value is: bytes follow from the precision of the run.
enum class Element { activation, statistic };

using ValueId = int;

struct Value {
  std::string name;
  Layout layout;
  Element element = Element::activation;
  int maker = -1;              // the op that makes it; -1: none, it is an input
  bool over_domain = false;    // laid out over the weight domain: a weight
  bool wide_gradient = false;  // a weight that linears add to more than once: its gradient is kept
                               // and sent in the type of sums
};

// A matrix [rows, cols] that a linear reads: row-major elements from `first` of what the rank has
// of operand `operand`.  Of y = x w^T it makes the next `rows` columns.
struct Term {
  int operand = 1;
  std::int64_t first = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  [[nodiscard]] std::int64_t elements() const { return rows * cols; }
};

// A low-rank addition to a linear: s (x A^T) B^T, of A and B among the part's vectors
// (Matrix::Adapter), for some of its columns.
struct LowRank {
  int a = -1;
  int b = -1;
  // Columns of y (`transposed`: of x) that the rank has, and which outputs (inputs) those are.
  struct Columns {
    Interval here;
    Interval there;
  };
  std::vector<Columns> columns = {};
  double scale = 0;
};

struct Op {
  OpKind kind = OpKind::norm;
  std::vector<ValueId> in = {};
  std::vector<ValueId> out = {};
  std::vector<ValueId> needs = {};
  bool recompute = false;  // the mask: run again before the part's backward, outputs not saved
  bool in_place = false;   // out[0] takes over the memory of in.back(), which nobody else reads

  std::vector<std::vector<Term>> terms = {};        // linear: [group rank]
  std::vector<std::vector<LowRank>> adapters = {};  // linear: [group rank]; empty: it has none
  int inner = 0;                                    // linear: r of its adapters
  bool frozen = false;  // its matrices are not trained: no gradient of them is made
  // linear: y = x w with the single term; redistribute: forward adds up by C^T, which makes
  // a partition of a sum.
  bool transposed = false;
  // linear: [group rank] the rows of x that are read, or (`transposed`) of y that are made; empty:
  // all; outer_product: the residues of a, rows of o, by number among those that the rank has;
  // spread: rows of its result, which are those of whole lines.
  // `fresh`: those rows of an operand taken over in place are not there yet.
  std::vector<Interval> tile = {};
  bool fresh = false;
  int stride = 1;  // ring ops: the next rank of a ring is so many further in the group
  std::vector<Heads> heads = {};  // qk_norm, rope, attention: [group rank]
  Cuts entries = {};      // bias: [group rank] of its vectors side by side, what its columns take
  Interval vectors = {};  // of the part's vectors: those it reads
  // norm, qk_norm: [vector it reads] entries of those that are not trained, whose gradient is made
  // and let go; 0: it is.  Empty: all are trained.
  std::vector<std::int64_t> untrained = {};
  bool apart =
      false;  // add: x's gradient gets memory of its own, since it grows before y's is done
  bool biased = false;    // attention: the last operand is added to scores, [queries keys, heads]
  bool incoming = false;  // triangle: sums over the first row dim of its operands, not the second
  // attention, line_mean, mask_rows, mask_pairs: the mask that the batch brings, of the rows of
  // keys, of x, of y, or of what pairs are made of ("": all count); and the dim of it that keys
  // stand along, or that is summed over.
  std::string mask = {};
  std::string along = {};
  double scale = 1;        // outer_product: of the sum; bias: of its vectors; mask_pairs: what is
                           // added to numbers of sequences
  double probability = 0;  // dropout: of an element to become zero; attention ops: of one of their
                           // probabilities
  // adaptive ops: the columns of c that they read; batch_input: of what the batch brings (none:
  // all)
  Interval condition = {};
  // redistribute: C of the forward, or, where that is transposed, of the adjoint; gather_weights:
  // stack -> rows wanted; embed, cross_entropy: one a vocabulary tile.
  std::vector<Redistribution> copies = {};
};

// The documents of a group, packed without padding, and how their tokens are cut over its ranks.
struct Documents {
  std::vector<std::int64_t> lengths;
  Cuts cuts;
  bool causal = true;
  std::vector<double> shares = {};  // [rank] by which documents are cut; empty: evenly
  // Sizes of the dims that all documents have, and of the axes of the group's mesh (placement.h);
  // none: one axis.
  DimSizes dims = {};
  std::vector<int> mesh = {};

  [[nodiscard]] int ranks() const { return static_cast<int>(cuts.size()); }
  [[nodiscard]] std::int64_t tokens() const;
};
Documents packed(
    std::vector<std::int64_t> lengths, int ranks, bool causal, std::vector<double> shares = {});

// A stream that a part reads or writes, and the value that it is there.
struct Port {
  std::string stream;
  ValueId value = -1;

  friend bool operator==(const Port&, const Port&) = default;
};

struct Program {
  std::string part;      // "embedding", "attention", "mlp", "head"
  std::string strategy;  // that built it
  PartShape shape;
  Documents documents;
  int domain = 1;  // ranks of the weight domain
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Port> reads;
  std::vector<Port> writes;

  [[nodiscard]] int ranks() const { return documents.ranks(); }
};

// Adds the op, which makes its outputs.
Op& append(Program& program, Op op);

struct Seat {
  int group_rank = 0;
  int domain_rank = 0;
  bool across_nodes = false;  // whether ranks of its group are on several nodes
};

// The gradient of operand `operand` of an in-place op is that of its result, in its memory.
bool shares_gradient(const Op& op, std::size_t operand);

// The rank's place among those that hold the weights that the program reads; 0 where it has all.
int place_in_domain(const Program& program, Seat seat);

// What `seat` holds of a value.
Extent local_extent(const Program& program, ValueId value, Seat seat);

// A weight that is the parameter itself, in place: linears add straight into its gradient.
bool is_held(const Program& program, ValueId value);

// A run of queries against a run of keys: what the attention kernel does in one call for each head.
struct AttentionBlock {
  Interval queries;  // rows of the rank's queries
  Interval keys;     // rows of its keys and values
  // In masked attention (masks()) the block's query i sees its keys j <= i + diagonal.
  std::int64_t diagonal = 0;
  // Of these its last `window`, j > i + diagonal - window, where some query does not see all; 0:
  // all.  In attention in both directions those to either side count: 2 PartShape::window - 1.
  std::int64_t window = 0;
  // Of documents: the first query and the first key, counted from the first packed token.
  std::int64_t query_token = 0;
  std::int64_t key_token = 0;

  // Pairs of a query and a key that it sees; masked as masks() says.
  [[nodiscard]] std::int64_t pairs(bool masked) const;
};
// Whether queries may see some keys of a block only: of causal documents, and in windows.
bool masks(const Program& program);

// The blocks between queries and keys that lie like this, both ascending; those whose queries see
// nothing are left out, and so are keys before the first or behind the last that a block's queries
// see.  Blocks of the same queries follow one another.  `window`: PartShape::window.
std::vector<AttentionBlock> attention_blocks(
    const Documents& documents, const Piece& queries, const Piece& keys, std::int64_t window = 0);
// The tokens that these queries see, ascending: of their documents, and of their windows.
Piece seen_tokens(const Documents& documents, const Piece& queries, std::int64_t window);
// All blocks of an attention op on a rank; none on a rank without heads.  Where rows are no packed
// tokens, a block for each *line*: leading row dims that queries and keys share by name, but for
// the last of each, number the lines; all other rows of a line attend to one another.
std::vector<AttentionBlock> attention_blocks(const Program& program, const Op& op, int group_rank);

// Ranks of a ring, and whose keys a rank has at a hop.
int ring_size(const Program& program, const Op& op);
int ring_source(const Program& program, const Op& op, int group_rank, int hop);
// What of a rank's keys and values goes round its ring, and how far.  Without a window all of them,
// all the way; with one the rows that queries of other ranks see, until the last such rank has
// them.
struct RingPass {
  Piece rows = {};  // of those that the rank has
  int hops = 0;
};
RingPass ring_pass(const Program& program, const Op& op, int owner);
// Rows of keys that a rank has at a hop: its own, or what came round of another's.
std::int64_t ring_rows(const Program& program, const Op& op, int group_rank, int hop);
// A ring op's blocks at a hop: between this rank's queries and those keys; none without heads.
std::vector<AttentionBlock> ring_blocks(
    const Program& program, const Op& op, int group_rank, int hop);

// Rows of x that a linear multiplies on a rank.
std::int64_t linear_rows(const Program& program, const Op& op, Seat seat);

// Full rows of scores, as ColossalZ keeps them: for each of a rank's tokens, head by head, a score
// for every token of its document, or, with a window, for every one that the run sees some of.
struct ScoreRun {
  Interval tokens;               // of one document, counted from its first
  Interval rows;                 // of the rank
  std::int64_t first_key = 0;    // of a row, counted from the document's first token
  std::int64_t keys = 0;         // of a row
  std::int64_t seen = 0;         // of them, by the first token; by each next one more, where masked
  std::int64_t window = 0;       // of those the last that a token sees; 0: all
  std::int64_t first_score = 0;  // where the run's scores begin among the rank's
};
std::vector<ScoreRun> score_runs(
    const Documents& documents, int group_rank, std::int64_t heads, std::int64_t window = 0);
std::int64_t longest(const std::vector<ScoreRun>& runs);  // most keys of a row
// Rows of the tiles in which the adjoint takes them.
std::int64_t score_tile_rows(const std::vector<ScoreRun>& runs);
// [scores, 1], the documents' one after the other, cut like their tokens; with a window the ranks'
// one after the other.
Layout score_layout(const Documents& documents, std::int64_t heads, std::int64_t window = 0);

// Keys and values of an attention op, perhaps queries with them; and its bias, -1: it has none.
ValueId keys_of(const Op& op);
ValueId bias_of(const Op& op);

// Query heads that share a key/value head: query head h reads key head h / heads_per_key(op).
std::int64_t heads_per_key(const Op& op);

// The kernel takes a block's scores in tiles of at most so many queries and keys.
struct AttentionTile {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};
AttentionTile attention_tile(const AttentionBlock& block);

std::string to_string(OpKind kind);

// The program as text: one line an op with operands, how they lie and what moves.
std::string explain(const Program& program);

}  // namespace paradyse
