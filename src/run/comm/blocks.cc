#include "src/run/comm/blocks.h"

#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "src/run/comm/sum_rows.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_kernels.h"

namespace paradyse {
namespace {

using Rectangle = std::array<std::int64_t, 4>;  // row, column, rows, columns
using Landing = std::map<Rectangle, std::vector<const Block*>>;

// Whether the rectangles cover `extent`, every element once, in bands of rows; when in doubt, no.
bool tile(const Landing& landing, Extent extent) {
  Rectangle band{0, 0, 0, 0};  // rows of the current band, columns covered so far
  for (const auto& [rectangle, blocks] : landing) {
    const auto [row, col, rows, cols] = rectangle;
    const bool next_band = band[3] == extent.cols || (band[2] == 0 && row == 0);
    if (next_band ? row != band[0] + band[2] || col != 0
                  : row != band[0] || rows != band[2] || col != band[3]) {
      return false;
    }
    band = next_band ? Rectangle{row, 0, rows, cols} : Rectangle{row, 0, rows, col + cols};
  }
  return (extent.elements() == 0 && landing.empty()) ||
         (band[0] + band[2] == extent.rows && band[3] == extent.cols);
}

at::Tensor part(
    const at::Tensor& matrix,
    std::int64_t row,
    std::int64_t col,
    std::int64_t rows,
    std::int64_t cols) {
  return matrix.narrow(0, row, rows).narrow(1, col, cols);
}

}  // namespace

void check_matrix(const at::Tensor& tensor, Extent extent, const Call& call, const char* which) {
  const bool rows_contiguous = tensor.dim() == 2 && (tensor.size(1) <= 1 || tensor.stride(1) == 1);
  if (!rows_contiguous || tensor.size(0) != extent.rows || tensor.size(1) != extent.cols) {
    throw std::logic_error(fmt::format(
        "{}: the {} is not the [{}, {}] matrix of the copy table",
        to_string(call),
        which,
        extent.rows,
        extent.cols));
  }
}

void check_contiguous(const at::Tensor& tensor, const Call& call) {
  if (!tensor.is_contiguous()) {
    throw std::logic_error(to_string(call) + ": the tensor is not contiguous");
  }
}

void copy_rows(const View& to, const View& from, std::int64_t rows, std::int64_t cols) {
  const std::int64_t row_bytes = cols * to.item;
  if (to.stride == row_bytes && from.stride == row_bytes) {
    std::memcpy(to.data, from.data, static_cast<std::size_t>(rows * row_bytes));
    return;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(
        to.data + r * to.stride, from.data + r * from.stride, static_cast<std::size_t>(row_bytes));
  }
}

void copy_rows(
    const at::Tensor& to,
    std::int64_t to_row,
    std::int64_t to_col,
    const at::Tensor& from,
    std::int64_t from_row,
    std::int64_t from_col,
    std::int64_t rows,
    std::int64_t cols) {
  if (through_aten(to)) {
    part(to, to_row, to_col, rows, cols).copy_(part(from, from_row, from_col, rows, cols));
  } else {
    copy_rows(View(to).at(to_row, to_col), View(from).at(from_row, from_col), rows, cols);
  }
}

void copy_all(const at::Tensor& to, const at::Tensor& from) {
  if (through_aten(to)) {
    at::Tensor(to).copy_(from.view(to.sizes()));
  } else {
    std::memcpy(View(to).data, from.const_data_ptr(), to.nbytes());
  }
}

void add_all(const at::Tensor& to, const std::vector<at::Tensor>& others) {
  if (through_aten(to)) {
    aten::sum_into(to, others, true);
    return;
  }
  std::vector<const void*> sources;
  for (const at::Tensor& other : others) {
    sources.push_back(other.const_data_ptr());
  }
  const at::ScalarType type = to.scalar_type();
  sum_into(View(to).data, type, sources, type, to.numel(), true);
}

namespace {

// Calls body(rectangle, blocks that land there, whether to add) for every rectangle of `to`. Blocks
// that land on the same rectangle are added in one pass; where rectangles overlap only in part
// (shared key/value heads), block after block.
template <typename Body>
void for_landings(
    const at::Tensor& to, const Transfer& table, int rank, bool accumulate, Body body) {
  Landing landing;
  for (const Block& block : table.blocks) {
    if (block.source == rank && block.elements() > 0) {
      landing[{block.source_row, block.source_col, block.rows, block.cols}].push_back(&block);
    }
  }
  const bool tiled = tile(landing, table.source[static_cast<std::size_t>(rank)]);
  if (!tiled && !accumulate) {
    to.zero_();
  }
  for (const auto& [rectangle, blocks] : landing) {
    body(rectangle, blocks, accumulate || !tiled);
  }
}

}  // namespace

void sum_blocks(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    const std::function<at::Tensor(const Block& block)>& theirs) {
  for_landings(
      to,
      table,
      rank,
      accumulate,
      [&](const Rectangle& rectangle, const std::vector<const Block*>& blocks, bool add) {
        const auto [row, col, rows, cols] = rectangle;
        std::vector<at::Tensor> sources;
        for (const Block* block : blocks) {
          sources.push_back(theirs(*block));
        }
        aten::sum_into(part(to, row, col, rows, cols), sources, add);
      });
}

void sum_blocks(
    const at::Tensor& to,
    const Transfer& table,
    int rank,
    bool accumulate,
    at::ScalarType type,
    const std::function<View(const Block& block)>& theirs) {
  const View mine(to);
  for_landings(
      to,
      table,
      rank,
      accumulate,
      [&](const Rectangle& rectangle, const std::vector<const Block*>& blocks, bool add) {
        const auto [row, col, rows, cols] = rectangle;
        std::vector<View> views;
        bool contiguous = mine.stride == cols * mine.item;
        for (const Block* block : blocks) {
          views.push_back(theirs(*block));
          contiguous = contiguous && views.back().stride == cols * views.back().item;
        }
        const std::int64_t steps = contiguous ? 1 : rows;
        const std::int64_t length = contiguous ? rows * cols : cols;
        std::vector<const void*> sources(blocks.size());
        for (std::int64_t r = 0; r < steps; ++r) {
          for (std::size_t b = 0; b < blocks.size(); ++b) {
            sources[b] = views[b].at(r, 0).data;
          }
          sum_into(mine.at(row + r, col).data, to.scalar_type(), sources, type, length, add);
        }
      });
}

}  // namespace paradyse
