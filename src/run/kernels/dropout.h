// Which numbers become zero in training.  A function of where they stand in the model and in the
// global batch, so that whoever has them, in whatever tile and however often, draws the same.
#pragma once

#include <cstdint>

namespace paradyse::kernels {

// Of elements of rows: a function of the seed, the place in the model, the token's index in the
// global batch and the column; by Philox4x32-10 (Salmon et al. 2011), counter {column / 4, site,
// token (two words)}, four columns a draw.
struct Dropout {
  double probability = 0;  // 0: none
  std::uint64_t seed = 0;
  std::uint32_t site = 0;
};

// Of probabilities of attention: for columns the key's position in its document, for tokens the
// query's, and in the counter's highest 16 bits its head among the model's, from 1 on.  A tile's:
// those of its first query and key.
struct AttentionDropout {
  Dropout drawn = {};
  std::int64_t token = 0;
  std::int64_t head = 0;
  std::int64_t key = 0;

  [[nodiscard]] bool drops() const { return drawn.probability > 0; }
  // The tile that begins so many queries, heads and keys further on.
  [[nodiscard]] AttentionDropout from(
      std::int64_t queries, std::int64_t heads, std::int64_t keys) const {
    return {drawn, token + queries, head + heads, key + keys};
  }
  // What stands for the token in the counter of the query `row`.
  [[nodiscard]] std::uint64_t counted(std::int64_t row) const {
    return static_cast<std::uint64_t>(token + row) | (static_cast<std::uint64_t>(head + 1) << 48);
  }
};

}  // namespace paradyse::kernels
