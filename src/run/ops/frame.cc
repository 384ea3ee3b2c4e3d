#include "src/run/ops/frame.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

constexpr const char* kBatchDim = "batch";

}  // namespace

void Frame::await(ValueId id) {
  pending[idx(id)]->wait();
  pending[idx(id)].reset();
}

at::Tensor& Frame::value(ValueId id) {
  at::Tensor& tensor = values.at(idx(id));
  if (!tensor.defined()) {
    throw std::logic_error(
        program().part + ": value '" + program().values[idx(id)].name + "' is read but not there");
  }
  return tensor;
}

at::Tensor& Frame::gradient(ValueId id) {
  at::Tensor& tensor = gradients.at(idx(id));
  if (!tensor.defined()) {
    throw std::logic_error(
        program().part + ": the gradient of '" + program().values[idx(id)].name +
        "' is read but not there");
  }
  return tensor;
}

at::Tensor Frame::of_rows(
    ValueId id,
    BatchNumbers::Kind kind,
    const std::vector<std::int64_t>& mine,
    const std::vector<std::int64_t>& all) const {
  const Layout& layout = program().values[idx(id)].layout;
  if (!layout.cuts_rows()) {
    return numbers->of({kind}, [&] { return all; });
  }
  const Piece line = layout.line(rank->seat.group_rank);
  BatchNumbers::Key key{kind};
  for (const Interval run : line) {
    key.which.insert(key.which.end(), {run.begin, run.end});
  }
  if (line.empty()) {
    key.which = {0, 0};  // not all
  }
  return numbers->of(key, [&] {
    if (line == program().documents.cuts[idx(rank->seat.group_rank)]) {
      return mine;
    }
    std::vector<std::int64_t> rows;
    for (const Interval run : line) {
      rows.insert(rows.end(), all.begin() + run.begin, all.begin() + run.end);
    }
    return rows;
  });
}

at::Tensor Frame::places(ValueId id, const std::string& dim) const {
  const Layout& layout = program().values[idx(id)].layout;
  const std::size_t along = layout.place(dim);
  std::vector<std::int64_t> runs = {static_cast<std::int64_t>(along)};
  for (std::size_t d = 0; d + 1 < layout.dims.size(); ++d) {
    for (const Interval run : layout.dims[d].piece(rank->seat.group_rank)) {
      runs.insert(runs.end(), {run.begin, run.end});
    }
    runs.push_back(-1);
  }
  return numbers->of({BatchNumbers::Kind::places, runs}, [&] {
    std::vector<std::int64_t> rows = {0};
    for (std::size_t d = 0; d + 1 < layout.dims.size(); ++d) {
      std::vector<std::int64_t> more;
      for (const std::int64_t row : rows) {
        for (const Interval run : layout.dims[d].piece(rank->seat.group_rank)) {
          for (std::int64_t i = run.begin; i < run.end; ++i) {
            more.push_back(d == along ? i : row);
          }
        }
      }
      rows = std::move(more);
    }
    return rows;
  });
}

at::Tensor Frame::numbered_rows(ValueId id, const std::string& shared) const {
  constexpr int kSample = 32;  // the bit from which on a number says the sample
  const Layout& layout = program().values[idx(id)].layout;
  const int group_rank = rank->seat.group_rank;
  std::vector<std::int64_t> runs;
  for (std::size_t d = 0; d + 1 < layout.dims.size(); ++d) {
    const Dim& dim = layout.dims[d];
    runs.push_back(dim.name == shared ? -2 : -1);
    for (const char letter : dim.name) {
      runs.push_back(letter);
    }
    for (const Interval run : dim.piece(group_rank)) {
      runs.insert(runs.end(), {run.begin, run.end});
    }
  }
  return numbers->of({BatchNumbers::Kind::rows, runs}, [&] {
    const bool batched =
        std::ranges::any_of(layout.dims, [](const Dim& dim) { return dim.name == kBatchDim; });
    const bool one = !batched && !batch->sample_numbers.empty();  // an idle rank has none
    std::vector<std::int64_t> rows = {one ? batch->sample_numbers.front() << kSample : 0};
    for (std::size_t d = 0; d + 1 < layout.dims.size(); ++d) {
      const Dim& dim = layout.dims[d];
      std::int64_t stride = 1;
      for (std::size_t e = 0; e + 1 < layout.dims.size(); ++e) {
        const Dim& other = layout.dims[e];
        stride *= other.name > dim.name && other.name != kBatchDim ? other.size : 1;
      }
      std::vector<std::int64_t> more;
      for (const std::int64_t row : rows) {
        for (const Interval run : dim.piece(group_rank)) {
          for (std::int64_t i = run.begin; i < run.end; ++i) {
            more.push_back(
                row + (dim.name == shared      ? 0
                       : dim.name == kBatchDim ? batch->sample_numbers.at(idx(i)) << kSample
                                               : i * stride));
          }
        }
      }
      rows = std::move(more);
    }
    return rows;
  });
}

at::Tensor& Frame::make(ValueId id) {
  const Extent extent = local_extent(program(), id, rank->seat);
  const bool statistics = program().values[idx(id)].element == Element::statistic;
  at::Tensor& tensor = values.at(idx(id));
  tensor = empty(extent.rows, extent.cols, statistics ? statistic : activation);
  return tensor;
}

std::pair<at::Tensor, bool> Frame::gradient_target(ValueId id) {
  at::Tensor& tensor = gradients.at(idx(id));
  if (tensor.defined()) {
    return {tensor, true};
  }
  const Extent extent = local_extent(program(), id, rank->seat);
  tensor = empty(extent.rows, extent.cols, activation);
  return {tensor, false};
}

at::Tensor Frame::only_gradient_target(ValueId id) {
  const auto [target, accumulate] = gradient_target(id);
  if (accumulate) {
    throw std::logic_error(
        program().part + ": '" + program().values[idx(id)].name +
        "' has two readers, one of whose adjoints cannot add");
  }
  return target;
}

namespace {

// Elements of weights `id` that this rank's linears of the part read, if each is read once.
std::int64_t elements_read(const Program& program, ValueId id, int group_rank) {
  std::int64_t elements = 0;
  for (const Op& op : program.ops) {
    if (op.terms.empty()) {
      continue;
    }
    for (const Term& term : op.terms[idx(group_rank)]) {
      if (op.in[idx(term.operand)] == id) {
        elements += term.elements();
      }
    }
  }
  return elements;
}

}  // namespace

at::Tensor Frame::vector_gradient(std::int64_t vector) const {
  const at::Tensor& gradient = parameters->vector_grads.at(idx(vector));
  return gradient.defined() ? gradient
                            : at::zeros(
                                  parameters->vectors.at(idx(vector)).sizes(),
                                  at::TensorOptions().dtype(statistic).device(device));
}

std::pair<at::Tensor, bool> Frame::weight_gradient_target(ValueId id) {
  if (is_held(program(), id)) {
    return {parameters->stack_grad, true};
  }
  const bool wide = program().values[idx(id)].wide_gradient;
  const Extent extent = local_extent(program(), id, rank->seat);
  const bool covered =
      !wide && elements_read(program(), id, rank->seat.group_rank) == extent.elements();
  at::Tensor& tensor = gradients.at(idx(id));
  if (!tensor.defined()) {
    tensor = empty(extent.rows, extent.cols, wide ? statistic : activation);
    if (!covered) {
      tensor.zero_();
    }
  }
  return {tensor, wide};
}

}  // namespace paradyse
