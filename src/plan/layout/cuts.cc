#include "paradyse/cuts.h"

#include <algorithm>
#include <numeric>

namespace paradyse {

std::int64_t size(const Piece& piece) {
  return std::accumulate(
      piece.begin(), piece.end(), std::int64_t{0}, [](std::int64_t sum, Interval interval) {
        return sum + interval.size();
      });
}

void append(Piece& piece, Interval interval) {
  if (interval.empty()) {
    return;
  }
  if (!piece.empty() && piece.back().end == interval.begin) {
    piece.back().end = interval.end;
  } else {
    piece.push_back(interval);
  }
}

Piece slice(const Piece& piece, Interval stored) {
  Piece found;
  std::int64_t first = 0;  // of the interval, as stored
  for (const Interval interval : piece) {
    const std::int64_t begin = std::max(stored.begin - first, std::int64_t{0});
    const std::int64_t end = std::min(stored.end - first, interval.size());
    append(found, {interval.begin + begin, interval.begin + std::max(begin, end)});
    first += interval.size();
  }
  return found;
}

Piece together(std::span<const Piece> pieces) {
  Piece all;
  for (const Piece& piece : pieces) {
    all.insert(all.end(), piece.begin(), piece.end());
  }
  std::ranges::sort(all, {}, &Interval::begin);
  Piece joined;
  for (const Interval interval : all) {
    append(joined, interval);
  }
  return joined;
}

Cuts whole_cuts(std::int64_t size, int ranks) {
  Piece whole;
  append(whole, {0, size});
  return Cuts(static_cast<std::size_t>(ranks), whole);
}

Cuts even_cuts(std::int64_t size, int ranks) {
  Cuts cuts(static_cast<std::size_t>(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) {
    append(cuts[static_cast<std::size_t>(r)], {r * size / ranks, (r + 1) * size / ranks});
  }
  return cuts;
}

Cuts scaled(const Cuts& cuts, std::int64_t width) {
  Cuts result = cuts;
  for (Piece& piece : result) {
    for (Interval& interval : piece) {
      interval = {interval.begin * width, interval.end * width};
    }
  }
  return result;
}

// A *piece* here is one of the m parts of a document; `phi` is what rounding owes to later ones.
Cuts token_cuts(std::span<const std::int64_t> lengths, int ranks, bool causal) {
  const std::int64_t p = ranks;
  const std::int64_t m = causal ? 2 * p : p;
  Cuts cuts(static_cast<std::size_t>(ranks));
  std::int64_t start = 0;
  std::int64_t phi = 0;
  for (const std::int64_t n : lengths) {
    const auto piece = [&](std::int64_t i) {
      return Interval{start + (i * n + phi) / m, start + ((i + 1) * n + phi) / m};
    };
    for (std::int64_t r = 0; r < p; ++r) {
      append(cuts[static_cast<std::size_t>(r)], piece(r));
      if (causal) {
        append(cuts[static_cast<std::size_t>(r)], piece(2 * p - 1 - r));
      }
    }
    start += n;
    phi = (phi + n) % m;
  }
  return cuts;
}

std::string to_string(const Cuts& cuts) {
  std::string text;
  for (std::size_t r = 0; r < cuts.size(); ++r) {
    text += (r == 0 ? "" : " ") + std::to_string(r) + ":";
    for (const Interval interval : cuts[r]) {
      text += "[" + std::to_string(interval.begin) + "," + std::to_string(interval.end) + ")";
    }
  }
  return text;
}

}  // namespace paradyse
