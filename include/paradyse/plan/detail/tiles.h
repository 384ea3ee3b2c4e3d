// Sizes of the tiles in which large products are made: part of a plan, since what ranks send and
// hold follows from them.
#pragma once

#include <compare>
#include <cstdint>

namespace paradyse {

struct Model;

// The defaults suit the caches of a CPU.
struct Tiles {
  // Rows of an embedding or head tile at most: a vocabulary up to this size takes one.
  std::int64_t vocabulary = 8192;
  // Elements of a tile of logits at most (unless the tile is one token high).
  std::int64_t logits = std::int64_t{1} << 18;
  // Elements of float32 in which a bfloat16 or float16 product is made and then rounded, at least
  // 64 rows of it; 0: the device rounds as it makes it, and needs no room.
  std::int64_t products = std::int64_t{1} << 17;

  // Tokens of a tile of logits.
  [[nodiscard]] std::int64_t logits_tokens(std::int64_t vocabulary_rows) const;
  // Rows in which a narrow product of so many columns is made; 0: no room is needed.
  [[nodiscard]] std::int64_t product_rows(std::int64_t columns) const;

  friend auto operator<=>(const Tiles&, const Tiles&) = default;
};

// For a GPU: launches cost more than memory does.  The whole vocabulary where its tile takes up to
// 1.5 GiB in elements of so many bytes, else as many rows as do; 2^26 logits.
Tiles gpu_tiles(const Model& model, std::int64_t element_bytes);

}  // namespace paradyse
