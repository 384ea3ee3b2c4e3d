// Appends values and ops to a program; every verb returns the value it makes.
#pragma once

#include <string>
#include <vector>

#include "paradyse/strategy.h"

namespace paradyse {

class Writer {
 public:
  // Starts a part; its input, where it has one, is x: shard(T).
  Writer(const Task& task, PartWeights weights, std::string strategy, bool has_input = true);

  [[nodiscard]] ValueId input() const { return program_.input; }
  [[nodiscard]] Placement by_tokens() const { return shard(0, program_.tokens.cuts); }

  ValueId hold();
  // All of the stack from all ranks of the domain, or only some of its matrices.
  ValueId gather();
  ValueId gather(std::size_t first_matrix, std::size_t last_matrix);

  ValueId norm(ValueId x);
  // y = x w^T with the given rows of the stacks in `weights`; columns placed like `columns` (their
  // whole width is `width`).
  ValueId linear(
      ValueId x,
      const std::vector<ValueId>& weights,
      std::vector<std::vector<Term>> terms,
      const std::string& name,
      Placement placement,
      std::int64_t width);
  // y = x w, the last matrix of the stack: [.., rows] -> [.., H].
  ValueId linear_transposed(
      ValueId x, ValueId weights, std::vector<std::vector<Term>> terms, Placement placement);
  ValueId rope(ValueId qkv, std::vector<Heads> heads);
  ValueId attention(ValueId qkv, std::vector<Heads> heads, Placement out);
  ValueId swiglu(ValueId gate_up, Placement out);
  // By the redistribution table; `again`: gathered again for the backward pass rather than saved.
  ValueId redistribute(ValueId x, const Placement& to, const std::string& name, bool again = false);
  ValueId embed();
  void cross_entropy(ValueId xn, bool keep);

  // out = x + y: the part's output.  Gives the finished program.
  Program residual(ValueId y);
  Program finish() { return std::move(program_); }

  [[nodiscard]] const PartWeights& weights() const { return weights_; }

 private:
  ValueId value(
      const std::string& name,
      Extent whole,
      Placement placement,
      Element element = Element::activation);
  Op& op(
      OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, std::vector<ValueId> needs);
  [[nodiscard]] std::vector<Transfer> vocabulary_tiles() const;

  PartWeights weights_;
  Program program_;
};

// Columns of a fused q | k | v matrix that each rank's heads take.
Cuts qkv_columns(const ModelShape& model, const std::vector<Heads>& heads);
// Columns of the attention output: the query heads.
Cuts output_columns(const ModelShape& model, const std::vector<Heads>& heads);
std::int64_t qkv_width(const ModelShape& model);

// For every rank, one term: rows [begin, end) of the stack of operand 1.
std::vector<std::vector<Term>> same_terms(int ranks, Interval rows);

}  // namespace paradyse
