// What measurements share.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "paradyse/plan/profile.h"
#include "paradyse/run/session.h"
#include "src/plan/base/median.h"

namespace paradyse {

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Pre: there are some.
inline Spread spread_of(const std::vector<double>& values) {
  return {
      .median = median(values),
      .least = *std::min_element(values.begin(), values.end()),
      .most = *std::max_element(values.begin(), values.end())};
}

// Documents of `length` tokens.  Any ids do: a small generator of Knuth's.
inline std::vector<std::vector<std::int32_t>> synthetic_documents(
    std::size_t count, std::int64_t length, std::int64_t vocab) {
  std::vector<std::vector<std::int32_t>> documents(count);
  for (std::size_t d = 0; d < count; ++d) {
    for (std::int64_t i = 0; i < length; ++i) {
      const auto mixed = static_cast<std::uint64_t>(i + 1) * 6364136223846793005ULL +
                         static_cast<std::uint64_t>(d) * 1442695040888963407ULL;
      documents[d].push_back(
          static_cast<std::int32_t>((mixed >> 33) % static_cast<std::uint64_t>(vocab)));
    }
  }
  return documents;
}

// One of each length.
inline std::vector<std::vector<std::int32_t>> synthetic_documents(
    const std::vector<std::int64_t>& lengths, std::int64_t vocab) {
  std::vector<std::vector<std::int32_t>> documents;
  for (const std::int64_t length : lengths) {
    documents.push_back(synthetic_documents(1, length, vocab).front());
  }
  return documents;
}

// Of these documents, which a masked LM is to predict as they are.
inline Batch synthetic_batch(std::span<const TokenView> documents, const Model& model) {
  Batch batch{.documents = documents};
  if (model.masked_lm) {
    batch.labels = documents;
  }
  return batch;
}

template <typename T>
std::vector<const T*> pointers(const std::vector<T>& values) {
  std::vector<const T*> result;
  for (const T& value : values) {
    result.push_back(&value);
  }
  return result;
}

}  // namespace paradyse
