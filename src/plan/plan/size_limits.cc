#include "src/plan/plan/size_limits.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace paradyse {
namespace {

double rows_of(const Stream& stream, const DimSizes& dims) {
  double rows = 1;
  for (const std::string& dim : stream.rows) {
    const auto found = dims.find(dim);
    rows *= found == dims.end() ? 1 : static_cast<double>(found->second);
  }
  return rows;
}

std::string more_than_counted(const Model& model, double rows, double pairs) {
  std::int64_t columns = 1;
  for (const Stream& stream : model.streams) {
    columns = std::max(columns, stream.columns);
  }
  // of an activation 8 bytes, of a layer eight as wide as its widest stream
  constexpr double kBytes = 64;
  constexpr double kMostBytes = 0x1p62;
  const double bytes = rows * static_cast<double>(columns) * kBytes *
                       static_cast<double>(std::max<std::int64_t>(1, model.layers));
  if (rows > static_cast<double>(kMostRows)) {
    return fmt::format("{:.6g} rows, and at most {} are counted", rows, kMostRows);
  }
  if (pairs > kMostPairs) {
    return fmt::format(
        "{:.6g} pairs of rows attend to each other, and at most {:.6g} are counted",
        pairs,
        kMostPairs);
  }
  return bytes > kMostBytes
             ? fmt::format(
                   "{:.6g} rows of {} columns in {} layers, and at most {:.6g} bytes are counted",
                   rows,
                   columns,
                   model.layers,
                   kMostBytes)
             : "";
}

}  // namespace

double attended_pairs(const Model& model, const DimSizes& dims) {
  double most = 0;
  for (const ModelPart& one : model.parts) {
    const Part& part = *one.part;
    if (part.reads.empty()) {
      continue;
    }
    const double rows = rows_of(model.stream(part.reads.front()), dims);
    const auto along = dims.find(model.of_samples() ? part.along : "tokens");
    most = std::max(most, along == dims.end() ? 0 : rows * static_cast<double>(along->second));
    if (part.kind == kCrossAttention) {
      most = std::max(most, rows * rows_of(model.stream(part.reads.back()), dims));
    }
  }
  return most;
}

std::string more_than_counted(const Model& model, const DimSizes& dims, std::int64_t samples) {
  double rows = 0;
  for (const Stream& stream : model.streams) {
    rows = std::max(rows, rows_of(stream, dims));
  }
  const auto count = static_cast<double>(samples);
  return more_than_counted(model, count * rows, count * attended_pairs(model, dims));
}

std::string more_than_counted(const Model& model, std::span<const std::int64_t> documents) {
  double rows = 0;
  double pairs = 0;
  for (const std::int64_t tokens : documents) {
    const auto length = static_cast<double>(tokens);
    rows += length;
    pairs += length * length;
  }
  return more_than_counted(model, rows, pairs);
}

void expect_counted_alone(const Model& model, std::span<const std::int64_t> documents) {
  const auto longest = std::ranges::max_element(documents);
  if (longest == documents.end()) {
    return;
  }
  if (const std::string why = more_than_counted(model, std::span(&*longest, 1)); !why.empty()) {
    throw std::invalid_argument(fmt::format(
        "document {} has {} tokens, which is too large: {}; cut it, or leave it out",
        longest - documents.begin(),
        *longest,
        why));
  }
}

}  // namespace paradyse
