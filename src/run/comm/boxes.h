// What every backend does with the boxes of a copy table (transfer.h) once it can read them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/transfer.h"
#include "paradyse/run/communicator.h"
#include "src/run/kernels/kernels.h"

namespace paradyse {

// Throws std::logic_error unless `tensor` is contiguous, and of so many elements.
void check_piece(
    const at::Tensor& tensor, std::int64_t elements, const Call& call, const char* which);
void check_contiguous(const at::Tensor& tensor, const Call& call);

// Where a tensor's elements begin.
char* data_of(const at::Tensor& tensor);

// Where the elements of a box lie, in the order of its loops: in the source's piece, in the
// destination's, and in a message, whose first one is at `offset`.
Region at_source(const Box& box);
Region at_destination(const Box& box);
Region packed(const Box& box, std::int64_t offset);
// All elements of a contiguous tensor.
Region all_of(const at::Tensor& contiguous);

// Copies the elements of `from` to those of `to`, which have the same loops.
void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region);
// All of it; as many elements of the same type.
void copy_all(const at::Tensor& to, const at::Tensor& from);
// to += the sum of these, which are as large, in their order.
void add_all(const at::Tensor& to, const std::vector<at::Tensor>& others);

// `to`, this rank's piece on the table's source side, = or += the sum of what the table's transpose
// brings to it, in the order of ranks.
void sum_boxes(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    const std::function<kernels::Summand(const Box& box)>& theirs);

}  // namespace paradyse
