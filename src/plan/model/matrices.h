// Matrices of a part as families write them.
#pragma once

#include <string>
#include <utility>

#include "paradyse/plan/detail/part_weights.h"

namespace paradyse {

enum class Side { input, output };  // of a product: its rows are the outputs, or the inputs

// `cuts`: of its rows over the domain; `input_first`: stored the other way round.
inline Matrix matrix(
    const char* name,
    const std::string& stored_as,
    Cuts cuts,
    std::int64_t cols,
    Side kind,
    bool input_first = false) {
  std::int64_t rows = 0;
  for (const Piece& piece : cuts) {
    rows += size(piece);
  }
  return {
      .name = name,
      .stored_as = stored_as + ".weight",
      .rows = rows,
      .cols = cols,
      .cuts = std::move(cuts),
      .transposed = (kind == Side::output) != input_first};
}

}  // namespace paradyse
