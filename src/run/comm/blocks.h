// What every backend does with the blocks of a copy table (transfer.h) once it can read them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/transfer.h"
#include "paradyse/run/communicator.h"

namespace paradyse {

// Rows of elements somewhere in memory.
struct View {
  char* data = nullptr;
  std::int64_t stride = 0;  // bytes from row to row
  std::int64_t item = 0;    // bytes of an element

  View(char* at_data, std::int64_t at_stride, std::int64_t its_item)
      : data(at_data), stride(at_stride), item(its_item) {}
  explicit View(const at::Tensor& tensor)
      : data(static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()))),
        item(static_cast<std::int64_t>(tensor.element_size())) {
    stride = (tensor.dim() >= 2 ? tensor.stride(0) : 1) * item;
  }
  [[nodiscard]] View at(std::int64_t row, std::int64_t col) const {
    return {data + row * stride + col * item, stride, item};
  }
};

// Throws std::logic_error unless `tensor` is the matrix, with contiguous rows, that the table says.
void check_matrix(const at::Tensor& tensor, Extent extent, const Call& call, const char* which);
void check_contiguous(const at::Tensor& tensor, const Call& call);

// `cols` elements of `rows` rows; both views have the same items.
void copy_rows(const View& to, const View& from, std::int64_t rows, std::int64_t cols);

// The same of tensors, on whatever device they are.
void copy_rows(
    const at::Tensor& to,
    std::int64_t to_row,
    std::int64_t to_col,
    const at::Tensor& from,
    std::int64_t from_row,
    std::int64_t from_col,
    std::int64_t rows,
    std::int64_t cols);
// All of it; as many elements of the same type.
void copy_all(const at::Tensor& to, const at::Tensor& from);
// to += the sum of these, which are like it, in their order.
void add_all(const at::Tensor& to, const std::vector<at::Tensor>& others);

// `to`, this rank's piece on the table's source side, = or += the sum of what the table's transpose
// brings to it, in the order of ranks.  `theirs` gives the block [rows, cols] of the destination
// side.
void sum_blocks(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    const std::function<at::Tensor(const Block& block)>& theirs);

// The same of memory; its elements are of `type`, and it lies where `theirs` says.
void sum_blocks(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    at::ScalarType type,
    const std::function<View(const Block& block)>& theirs);

}  // namespace paradyse
