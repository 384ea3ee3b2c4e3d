#include "paradyse/plan/detail/part_weights.h"

#include <numeric>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

std::vector<Interval> Matrix::stored(Interval some) const {
  return stored_at.empty() ? Piece{{first + some.begin, first + some.end}} : slice(stored_at, some);
}

Layout PartWeights::stack() const {
  Cuts cuts(matrices.empty() ? 0 : matrices.front().cuts.size());
  std::int64_t start = 0;
  for (const Matrix& matrix : matrices) {
    for (std::size_t r = 0; r < cuts.size(); ++r) {
      for (const Interval rows : matrix.cuts[r]) {
        append(cuts[r], {start + rows.begin * matrix.cols, start + rows.end * matrix.cols});
      }
    }
    start += matrix.elements();
  }
  return {.dims = {{.name = "elements", .size = start, .cuts = std::move(cuts)}}};
}

std::size_t PartWeights::place(const std::string& name) const {
  std::string names;
  for (std::size_t m = 0; m < matrices.size(); ++m) {
    if (matrices[m].name == name) {
      return m;
    }
    names.append(m == 0 ? "" : ", ").append(matrices[m].name);
  }
  throw std::invalid_argument(part + ": no matrix '" + name + "'; there are " + names);
}

std::int64_t PartWeights::first_element(std::size_t m) const {
  return std::accumulate(
      matrices.begin(),
      matrices.begin() + static_cast<std::ptrdiff_t>(m),
      std::int64_t{0},
      [](std::int64_t sum, const Matrix& before) { return sum + before.elements(); });
}

const Matrix& PartWeights::matrix(const std::string& name) const { return matrices[place(name)]; }

template <typename RowsOf>
WeightRows PartWeights::each(
    const std::string& first, const std::string& last, RowsOf rows_of) const {
  WeightRows found{.elements = {}, .cols = matrix(first).cols};
  for (std::size_t m = place(first); m <= place(last); ++m) {
    const Matrix& matrix = matrices[m];
    const std::int64_t start = first_element(m);
    for (const Interval rows : rows_of(matrix)) {
      append(found.elements, {start + rows.begin * matrix.cols, start + rows.end * matrix.cols});
    }
  }
  return found;
}

WeightRows PartWeights::rows(const std::string& name) const { return between(name, name); }

WeightRows PartWeights::rows(const std::string& name, Interval some) const {
  return between(name, name, some);
}

WeightRows PartWeights::between(const std::string& first, const std::string& last) const {
  return each(first, last, [](const Matrix& matrix) { return Piece{{0, matrix.rows}}; });
}

WeightRows PartWeights::between(
    const std::string& first, const std::string& last, Interval some) const {
  return each(first, last, [&](const Matrix& /*matrix*/) { return Piece{some}; });
}

WeightRows PartWeights::own(const std::string& first, const std::string& last, int rank) const {
  return each(first, last, [&](const Matrix& matrix) { return matrix.cuts.at(idx(rank)); });
}

Interval PartWeights::elements_of(std::size_t m, int rank) const {
  const auto stored = [&](const Matrix& matrix) {
    return size(matrix.cuts.at(idx(rank))) * matrix.cols;
  };
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < m; ++i) {
    begin += stored(matrices[i]);
  }
  return {begin, begin + stored(matrices.at(m))};
}

Interval PartWeights::vectors_of(Role role) const {
  Interval found;
  for (std::size_t v = 0; v < vectors.size(); ++v) {
    if (vectors[v].role == role) {
      const auto i = static_cast<std::int64_t>(v);
      found = found.empty() ? Interval{i, i + 1} : Interval{found.begin, i + 1};
    }
  }
  return found;
}

std::int64_t PartWeights::elements(int rank) const {
  std::int64_t elements = 0;
  for (const Matrix& m : matrices) {
    elements += m.tied ? 0 : size(m.cuts.at(idx(rank))) * m.cols;
  }
  for (const Vector& v : vectors) {
    elements += v.size;
  }
  return elements;
}

std::int64_t PartWeights::trained_elements(int rank) const {
  std::int64_t elements = 0;
  for (const Matrix& m : matrices) {
    elements += m.tied || frozen ? 0 : size(m.cuts.at(idx(rank))) * m.cols;
  }
  for (const Vector& v : vectors) {
    elements += v.frozen ? 0 : v.size;
  }
  return elements;
}

std::string layer_prefix(const PartWeights& part, std::int64_t layer) {
  return part.prefix.empty() ? "" : part.prefix + std::to_string(layer - part.first_layer) + ".";
}

}  // namespace paradyse
