// Appends values and ops to a program; every verb returns the value it makes, laid out as it was
// told or as its operand is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/strategy.h"

namespace paradyse {

// Some of each rank's rows of a matrix of tokens.
struct TokenTile {
  std::vector<Interval> rows;  // [group rank]; empty: all
  Layout layout;               // of the matrix with these rows alone
};

// What a part adds to its pairs is a sum over a dim, divided by the dim's size plus this.
struct MeanOfPairs {
  std::string over = {};  // "": it is no such thing
  double added = 0;
};

class Writer {
 public:
  // Starts a part, which reads the streams of its task.
  explicit Writer(const Task& task);

  // The first stream that the part reads, or another.
  [[nodiscard]] ValueId input() const { return program_.reads.front().value; }
  [[nodiscard]] ValueId input(const std::string& stream) const;
  // Of values.
  [[nodiscard]] const Layout& layout(ValueId value) const {
    return program_.values[idx(value)].layout;
  }
  // A matrix of the rows of the part's first stream with so many columns: every rank those of them
  // that it has; or every rank all of them, with its own columns where cuts are given.
  [[nodiscard]] Layout own_rows(std::int64_t columns) const;
  [[nodiscard]] Layout all_rows(std::int64_t columns, Cuts cuts = {}) const;
  // The rows that each rank has of such a matrix in `wanted` tiles of about one size, some of them
  // perhaps empty, but never more tiles than the fullest rank has rows.
  [[nodiscard]] std::vector<TokenTile> tiles(const Layout& layout, std::int64_t wanted) const;

  // The rows of the stack that this rank of the group holds for tensor parallelism: the parameter
  // itself, where the group is the whole domain; else gathered from it, whose groups are of one
  // size, one after the other.  `wide_gradient`: as of gather().
  ValueId hold(bool wide_gradient = false);
  // What `rank` of the group holds, after hold(), of the matrices from `first` to `last`.
  [[nodiscard]] WeightRows held(const std::string& first, const std::string& last, int rank) const {
    return held_.own(first, last, rank);
  }
  // All of the stack from all ranks of the domain, or only some of its matrices' rows, in the order
  // given; `wide_gradient`: linears use them more than once.
  ValueId gather(bool wide_gradient = false);
  ValueId gather(const std::vector<WeightRows>& rows, bool wide_gradient = false);
  // Where `rows` lie in what `rank` has of `weights`, operand `operand` of a linear: a term for
  // those that are neighbours there, all of what was gathered for them.  term(): the only one.
  // Throw std::logic_error where rows are not there; or not one after the other.
  [[nodiscard]] std::vector<Term> runs(
      ValueId weights, const WeightRows& rows, int rank = 0, int operand = 1) const;
  [[nodiscard]] Term term(
      ValueId weights, const WeightRows& rows, int rank = 0, int operand = 1) const;
  // [group rank] runs() of weights that all ranks have alike.
  [[nodiscard]] std::vector<std::vector<Term>> terms(ValueId weights, const WeightRows& rows) const;

  // What a part's first linear reads: its input, normed where the model norms before a part, and as
  // its condition says where it has one.
  ValueId normed_input();
  // The same values, stored so that rows of a line along the part's dim are neighbours.
  ValueId lined_up(ValueId x);
  [[nodiscard]] Layout lined_up(const Layout& layout) const;
  // How a pair bias lies for queries that lie so: all pairs of a query and a key, of each rank
  // those of its queries and heads. `xn`: the part's normed input, which a bias from the part's own
  // stream is made of.
  ValueId pair_bias(ValueId xn, ValueId stack, Layout queries, const std::vector<Heads>& heads);
  // Heads [T, N D] of attention times a sigmoid of xn, of which these rows, or all, lie as they do,
  // where the part has such a gate.
  ValueId gated_heads(ValueId o, ValueId xn, ValueId stack, const std::vector<Interval>& tile = {});
  // Queries, keys and values of the tokens of xn, as attention takes them: the product with the
  // matrices of the stacks in `weights` that `terms` name, and all that the model does to it before
  // heads meet (rotation).  Each rank makes the columns of its `heads` (of q | k | v, cut as
  // qkv_columns() has them or not at all).  With a tile of these rows of xn.
  ValueId qkv(
      ValueId xn,
      const std::vector<ValueId>& weights,
      std::vector<std::vector<Term>> terms,
      const std::vector<Heads>& heads,
      const std::string& name,
      Layout layout,
      std::vector<Interval> tile = {});
  // Queries apart from keys and values, of each rank's own rows: q [T, heads D] and kv
  // [T, 2 heads D], for these heads of the model, whose rows are all in `stack`.
  struct QueriesAndKeys {
    ValueId q;
    ValueId kv;
  };
  QueriesAndKeys q_and_kv(ValueId xn, ValueId stack, Heads mine);

  // Another stream that the part reads, of which each rank has what goes with its rows of x: dims
  // that both have are cut alike.
  ValueId alongside(const std::string& stream, ValueId x);

  ValueId norm(ValueId x, Role role = Role::norm);
  // The norm, and the gate, that the part's condition makes.
  ValueId adaptive_norm(ValueId x);
  ValueId adaptive_gate(ValueId y);
  // x + y, in y's memory.
  ValueId add(ValueId x, ValueId y);
  // y sigmoid(g).
  ValueId gate(ValueId y, ValueId g);
  // y + the vectors of `role`, which lie side by side over y's whole width: of them the entries of
  // the columns that a rank has, or `entries`, the same for all ranks.  y where the part has none.
  ValueId bias(ValueId y, Role role, double scale = 1);
  ValueId bias(ValueId y, Role role, const Piece& entries);
  ValueId dropout(ValueId y, double probability);
  // y = x w^T with the terms of the stacks in `weights`, of all rows of x or of a tile's.
  ValueId linear(
      ValueId x,
      const std::vector<ValueId>& weights,
      std::vector<std::vector<Term>> terms,
      const std::string& name,
      Layout layout,
      std::vector<Interval> tile = {});
  // y = x w: [.., rows] -> [.., cols].  With `onto`, y takes over that
  // value's memory and is added to it.  With a tile, of x and of these rows of y; `fresh`: onto has
  // not got them yet.
  ValueId linear_transposed(
      ValueId x,
      ValueId weights,
      std::vector<std::vector<Term>> terms,
      Layout layout,
      ValueId onto = -1,
      std::vector<Interval> tile = {},
      bool fresh = false);
  // Of heads each, or of all together, for which ranks that have some of them exchange tokens for
  // heads and back.  Throws std::invalid_argument where no rank computes all of them.
  ValueId qk_norm(ValueId qkv, const std::vector<Heads>& heads);
  ValueId rope(ValueId qkv, std::vector<Heads> heads);
  // Of qkv, or of q and kv; with a bias of scores, or without (-1).
  ValueId attention(
      std::vector<ValueId> in, std::vector<Heads> heads, Layout out, ValueId bias = -1);
  // Laid out like q; the next rank of a ring is `stride` further in the group.  Throws
  // std::invalid_argument where ranks have copies of queries, as the next.
  ValueId ring_attention(ValueId q, ValueId kv, std::vector<Heads> heads, int stride = 1);
  ValueId score_attention(ValueId q, ValueId kv, std::vector<Heads> heads);
  // silu(gate) * up, or the model's function of all columns; of the result each rank has the
  // columns `cuts`, or all.
  ValueId activation(ValueId h, Cuts cuts = {});
  // x where it lies alike; else copies, or of a sum a partition (transfer.h).  `again`: made
  // again for the backward pass rather than saved.  Throws std::invalid_argument for a sum that is
  // to become anything else.
  ValueId redistribute(ValueId x, Layout to, const std::string& name, bool again = false);
  // Terms of a sum added up: a partition, or, where `to` is none, one that is gathered.
  ValueId added_up(ValueId terms, Layout to, const std::string& name);
  // Of a line along the part's dim the mean of its rows: as x lies, but for one row a line, which
  // ranks that have parts of it have terms of.
  ValueId line_mean(ValueId x);
  // A line's row given to every row of it, of rows that lie like this, or to those of a tile; made
  // again for the backward pass, never saved.
  ValueId spread(ValueId y, Layout out, std::vector<Interval> tile = {});
  // The same rows, of each line one.
  [[nodiscard]] Layout one_a_line(Layout rows) const;
  // [i, j, A B], laid out like this, of a [s, i, A] and b [s, j, B]: `scale` times the sum over s,
  // with a tile of these i of each rank's; and [C, i, j] of two such.
  ValueId outer_product(
      ValueId a, ValueId b, Layout out, double scale, std::vector<Interval> tile = {});
  ValueId triangle(ValueId a, ValueId b, bool incoming, Layout out);
  // y, whose rows are those of the part's mask, with those zero that do not count; y where the part
  // has no mask.
  ValueId mask_rows(ValueId y);
  ValueId embed();
  // What the batch brings for the part (Part::input), laid out like this; made again for the
  // backward pass, never saved.  With columns: these of it.
  ValueId batch_input(Layout layout, Interval columns = {});
  // The loss, and in training its gradient; ends the model.
  Program cross_entropy(ValueId xn);
  // The same, of a prediction of what the batch brings for the part.
  Program flow_matching(ValueId y);

  // out = x + y, with all that the model does to y before and to the sum after: the part's output.
  // y lies like x; its bias, if the part has one, is added `bias_scale` times.  Gives the finished
  // program.  Where the part has a mask, `mean` is divided by the number of those that count for
  // both of a pair instead.
  Program residual(ValueId y, double bias_scale = 1, const MeanOfPairs& mean = {});
  // The part writes `output` to its stream (-1: none); what adjoints need follows from the ops.
  Program finish(ValueId output);

  // Ops from now on run again just before the adjoint that needs what they make.
  void recompute_from_here() { recompute_ = true; }

  [[nodiscard]] const PartWeights& weights() const { return weights_; }
  [[nodiscard]] int ranks() const { return program_.ranks(); }

 private:
  // Throws std::invalid_argument where no rank has whole rows, or where ranks have copies of them.
  void expect_whole_rows(ValueId x, const char* what) const;
  void expect_own_queries(ValueId q) const;
  // What the model does to queries and keys before they meet: norms of heads, rotation.
  ValueId prepared(ValueId y, const std::vector<Heads>& heads);
  ValueId add_bias(ValueId y, Role role, Cuts entries, double scale);
  // Whether its matrices are trained, and what adapters add to it, by what its terms read.
  void add_adapters(Op& linear) const;
  // Those of a run of elements of the stack, in rows of `cols`; `column` moves on past them.
  void add_columns(
      Interval run, std::int64_t cols, std::int64_t& column, std::vector<LowRank>& to) const;
  // Names the vectors of a norm.
  void read_vectors(Op& op, Role role) const;
  // Of an op that reads the part's mask, where it has one.
  void set_mask(Op& op) const;
  // In training, where the part says so.
  void drop_probabilities(Op& attention) const;
  ValueId value(const std::string& name, Layout layout, Element element = Element::activation);
  Op& op(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out);
  // Of the stack, from where it is stored, the elements that each rank of the domain wants.
  [[nodiscard]] Redistribution gathered(Cuts wanted) const;
  ValueId gather(Cuts wanted, bool wide_gradient);
  ValueId hold_stack();  // as this rank has it
  // Tiles of a stack of matrices as wide as x: of its rows [0, rows).
  [[nodiscard]] std::vector<Redistribution> vocabulary_tiles(std::int64_t rows) const;
  ValueId attend(OpKind kind, std::vector<ValueId> in, std::vector<Heads> heads, Layout out);

  std::shared_ptr<const Part> part_;
  Layout rows_;  // of the first stream that the part reads, or makes
  bool recompute_ = false;
  bool training_;
  PartWeights weights_;  // as the domain stores them
  PartWeights held_;     // and, after hold(), as the group holds them
  Program program_;
};

// A part without weights that stores a stream otherwise.
Program move_program(
    const std::string& stream,
    const Layout& from,
    const Layout& to,
    const Documents& documents,
    int domain);

// Columns of a fused q | k | v matrix that each rank's heads take.
Cuts qkv_columns(const PartShape& shape, const std::vector<Heads>& heads);
// Columns of the attention output: the query heads.
Cuts output_columns(const PartShape& shape, const std::vector<Heads>& heads);
std::int64_t qkv_width(const PartShape& shape);

// What an MLP makes first, h: gate | up, or up alone.  The first of its matrices; its width; its
// columns that some of the feed-forward width take.
const char* mlp_input(const PartShape& shape);
std::int64_t mlp_width(const PartShape& shape);
Piece mlp_columns(const PartShape& shape, Interval width);

}  // namespace paradyse
