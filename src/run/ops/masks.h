// Masks that a batch brings (Op::mask): which rows count.  A rank makes what an op wants of one
// when it runs, of the whole sample that it has, so nothing is sent.  Numbers are of the statistic
// type; src/plan/ops/masks.h says how many are held.
#pragma once

#include <string>

#include "src/run/ops/frame.h"

namespace paradyse::ops {

// [rows] 1 for each row that counts, else 0, of rows that lie so on this rank.
at::Tensor counted_rows(const Frame& frame, const std::string& mask, const Layout& rows);

// What is added to the scores of an attention op's keys: 0, or kMaskedScore for keys that do not
// count, which makes their probability 0.  Where none of a line's keys counts nothing is added:
// less by the same number, scores have the same probabilities.  (In float32 OpenFold's -1e9 leaves
// nothing of such a line's scores, so all its keys have one probability there.  Its queries do not
// count either, so neither loss nor gradients depend on it.)
class KeyMask {
 public:
  // `op` may have none.
  KeyMask(const Frame& frame, const Op& op);

  // [rows] Of all keys, where the rank has whole lines; undefined: none.
  [[nodiscard]] const at::Tensor& all() const { return lines_; }
  // [rows] Of the keys that a rank has where ranks have parts of the same lines.
  [[nodiscard]] at::Tensor of(int group_rank) const;

 private:
  const Frame& frame_;
  const Op& op_;
  at::Tensor lines_;
};

// to = each row of `from` times its number; both [rows, columns] of the activation type.
void scale_rows(const at::Tensor& from, const at::Tensor& numbers, const at::Tensor& to);

}  // namespace paradyse::ops
