#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/layout.h"

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
  return Cuts(idx(ranks), whole);
}

Cuts even_cuts(std::int64_t size, int ranks) {
  Cuts cuts(idx(ranks));
  for (std::int64_t r = 0; r < ranks; ++r) {
    append(cuts[idx(r)], {r * size / ranks, (r + 1) * size / ranks});
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

namespace {

// How documents are cut into pieces: piece i is `edges[i + 1] - edges[i]` parts of `edges.back()`
// wide, and after a document of n tokens phi has grown by `step` n.
struct Pieces {
  std::vector<std::int64_t> edges;
  std::int64_t step = 1;
};

Pieces equal_pieces(std::int64_t count) {
  Pieces pieces;
  pieces.edges.resize(idx(count) + 1);
  std::iota(pieces.edges.begin(), pieces.edges.end(), std::int64_t{0});
  return pieces;
}

Pieces pieces_of(int ranks, bool causal, std::span<const double> shares) {
  const auto p = idx(ranks);
  if (!shares.empty()) {
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    const bool sound = shares.size() == p && std::isfinite(sum) && sum > 0 &&
                       std::ranges::all_of(shares, [](double share) { return share >= 0; });
    if (!sound) {
      throw std::invalid_argument(
          "token_cuts: " + std::to_string(shares.size()) + " shares that sum to " +
          std::to_string(sum) + " for " + std::to_string(ranks) +
          " ranks: each rank takes one from 0 up, and their sum is positive");
    }
  }
  if (std::ranges::all_of(shares, [&](double share) { return share == shares.front(); })) {
    return equal_pieces(causal ? 2 * ranks : ranks);
  }
  // Parts of 2^20; of a causal document a rank's two pieces are equal.  Multiples of the golden
  // section fall evenly between any edges (Weyl), so that short documents spread by the shares.
  constexpr std::int64_t kParts = std::int64_t{1} << 20;
  constexpr std::int64_t kGolden = 648055;  // odd, near 2^20 (sqrt(5) - 1) / 2
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  Pieces pieces{.edges = {0}, .step = kGolden};
  double before = 0;
  const auto add = [&](double share) {
    before += share / sum;
    pieces.edges.push_back(
        static_cast<std::int64_t>(std::llround(before * static_cast<double>(kParts))));
  };
  for (const double share : shares) {
    add(causal ? share / 2 : share);
  }
  for (std::size_t r = p; causal && r-- > 0;) {
    add(shares[r] / 2);
  }
  pieces.edges.back() = kParts;
  return pieces;
}

}  // namespace

// A *piece* here is one of the m parts of a document; `phi` is what rounding owes to later ones.
Cuts token_cuts(
    std::span<const std::int64_t> lengths, int ranks, bool causal, std::span<const double> shares) {
  const Pieces pieces = pieces_of(ranks, causal, shares);
  const std::int64_t whole = pieces.edges.back();
  const std::size_t m = pieces.edges.size() - 1;
  Cuts cuts(idx(ranks));
  std::int64_t start = 0;
  std::int64_t phi = 0;
  for (const std::int64_t n : lengths) {
    const auto edge = [&](std::size_t i) { return start + (pieces.edges[i] * n + phi) / whole; };
    for (std::size_t r = 0; r < cuts.size(); ++r) {
      append(cuts[r], {edge(r), edge(r + 1)});
      if (causal) {
        append(cuts[r], {edge(m - 1 - r), edge(m - r)});
      }
    }
    start += n;
    phi = (phi + pieces.step * (n % whole)) % whole;
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
