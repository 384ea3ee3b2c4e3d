#include "paradyse/plan/detail/tiles.h"

#include <algorithm>

#include "paradyse/plan/model.h"

namespace paradyse {

std::int64_t Tiles::logits_tokens(std::int64_t vocabulary_rows) const {
  return std::max<std::int64_t>(1, logits / std::max<std::int64_t>(1, vocabulary_rows));
}

std::int64_t Tiles::product_rows(std::int64_t columns) const {
  // Lower tiles cost speed: the product copies its right factor for each.
  return products == 0 ? 0
                       : std::max<std::int64_t>(64, products / std::max<std::int64_t>(1, columns));
}

Tiles gpu_tiles(const Model& model, std::int64_t element_bytes) {
  const PartShape& embedding = model.parts.front().part->shape;
  constexpr std::int64_t kTileBytes = (std::int64_t{3} << 30) / 2;
  const std::int64_t row = std::max<std::int64_t>(1, embedding.hidden * element_bytes);
  const std::int64_t rows = embedding.vocab + embedding.position_rows + embedding.segments;
  return {
      .vocabulary = std::clamp<std::int64_t>(kTileBytes / row, 1, std::max<std::int64_t>(1, rows)),
      .logits = std::int64_t{1} << 26,
      .products = 0};
}

}  // namespace paradyse
