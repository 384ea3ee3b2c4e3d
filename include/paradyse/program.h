// A part of a model (embedding, attention, MLP, head) as a straight list of operations on named,
// placed matrices; the quantities that follow from the list are folds over it (cost.h).
//
// Words.  A *value* is a matrix [rows, cols] of the program, placed over the program's group
// (weights: over the weight domain).  An op *needs* the values that its adjoint reads.  A value is
// *saved* when it lives from the forward to the backward pass.  A *seat* is where a rank sits: its
// number in the group and in the weight domain.
//
// Letters: T tokens of the micro-batch, H hidden width, N/K query/key heads, D width of a head, F
// feed-forward width, R rows of a part's weight stack.  Next: schedule.h, then strategy.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/part_weights.h"
#include "paradyse/placement.h"
#include "paradyse/transfer.h"

namespace paradyse {

enum class OpKind {
  embed,         // () -> x: rows of the embedding by token id; the table comes in vocabulary tiles
  norm,          // (x) -> xn: RMSNorm with the part's vector
  hold_weights,  // () -> w: this rank's own stack, in place
  gather_weights,  // () -> w: rows of the stack from all ranks of the weight domain
  linear,          // (x, w...) -> y = x w^T, columns from the op's terms; or y = x w (`transposed`)
  rope,            // (qkv) -> qkv with rotated queries and keys
  redistribute,    // (x) -> x placed otherwise
  attention,       // (qkv) -> o, l: softmax attention in each document, l = log-sum-exp
  swiglu,          // (gate | up) -> silu(gate) * up
  add,             // (x, y) -> x + y
  cross_entropy,   // (xn) -> d, the gradient of the loss to xn; logits in tiles, never whole
};

// What an element of a value is: bytes follow from the precision of the run.
enum class Element { activation, statistic };

using ValueId = int;

struct Value {
  std::string name;
  Extent whole;
  Placement placement;
  Element element = Element::activation;
  bool over_domain = false;  // placed over the weight domain: a weight
};

// Columns of a linear's output: x times rows `rows` of the local stack of operand `operand`.
struct Term {
  int operand = 1;
  Interval rows;
};

struct Op {
  OpKind kind = OpKind::norm;
  std::vector<ValueId> in;
  std::vector<ValueId> out;
  std::vector<ValueId> needs;
  bool recompute = false;  // the mask: run again before the part's backward, outputs not saved
  bool in_place = false;   // out[0] takes over the memory of in.back(), which nobody else reads

  std::vector<std::vector<Term>> terms = {};         // linear: [group rank]
  bool transposed = false;                           // linear: y = x w with the single term's rows
  std::vector<Heads> heads = {};                     // rope, attention: [group rank]
  Collective collective = Collective::none;          // redistribute
  Collective adjoint_collective = Collective::none;  // redistribute
  // redistribute: the copy table of the forward, or, for partial -> shard, of the adjoint;
  // gather_weights: stack -> rows wanted; embed, cross_entropy: one table a vocabulary tile.
  std::vector<Transfer> transfers = {};
};

// The documents of a group, packed without padding, and how their tokens are cut over its ranks.
struct TokenLayout {
  std::vector<std::int64_t> lengths;
  Cuts cuts;
  bool causal = true;

  [[nodiscard]] int ranks() const { return static_cast<int>(cuts.size()); }
  [[nodiscard]] std::int64_t tokens() const;
};
TokenLayout token_layout(std::vector<std::int64_t> lengths, int ranks, bool causal);

struct Program {
  std::string part;      // "embedding", "attention", "mlp", "head"
  std::string strategy;  // name or verb it was built for
  TokenLayout tokens;
  int domain = 1;  // ranks of the weight domain
  std::int64_t head_dim = 0;
  std::vector<Value> values;
  std::vector<Op> ops;
  ValueId input = -1;   // the residual stream coming in, [T, H]; -1: none
  ValueId output = -1;  // and going out

  [[nodiscard]] int ranks() const { return tokens.ranks(); }
};

struct Seat {
  int group_rank = 0;
  int domain_rank = 0;
};

// What `seat` holds of a value.
Extent local_extent(const Program& program, ValueId value, Seat seat);

// The op that makes `value`, or -1 for an input.
int producer(const Program& program, ValueId value);

// One call of the attention kernel: a document and a run of query heads that all share key/value
// heads in the same proportion.
struct AttentionCall {
  std::int64_t first_token = 0;  // of the packed tokens
  std::int64_t tokens = 0;
  Interval query;  // heads, counted from the rank's first
  Interval key;
};

// All calls of an attention op on `seat`: none for empty documents or a rank without heads.
std::vector<AttentionCall> attention_calls(const Program& program, const Op& op, int group_rank);

// Rows of an embedding or head tile: vocabularies up to this size need one tile.
inline constexpr std::int64_t kVocabularyTile = 8192;
// Elements of a tile of logits at most (unless the tile is one token high).
inline constexpr std::int64_t kLogitsTile = std::int64_t{1} << 18;
// Tokens of a tile of logits.
std::int64_t logits_tile_tokens(std::int64_t vocabulary_tile_rows);

std::string to_string(OpKind kind);

// The program as text: one line an op with operands, placements and what it sends.
std::string explain(const Program& program);

}  // namespace paradyse
