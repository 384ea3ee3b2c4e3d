// Compiled with -ffp-contract=off: u and the last product are rounded as torch rounds them.
#include "src/run/weights/normal.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/cpu/vectors.h"

namespace paradyse {
namespace {

constexpr std::size_t kBlock = 256;  // numbers made at once; what is made of them stays in L1
using Floats = std::array<float, kBlock>;
using Doubles = std::array<double, kBlock>;

// In (0, 1].
inline float uniform(std::uint32_t bits) {
  constexpr float kScale = 4.6566127342e-10F;  // the largest below 2^-31, as torch has it
  return 1 - static_cast<float>(static_cast<std::int32_t>(bits & 0x7FFFFFFF)) * kScale;
}

// Two numbers for each counter from `first` on.
PARADYSE_CLONES void draw_uniform(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t first, Floats& u1, Floats& u2) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  for (std::size_t i = 0; i < kBlock; ++i) {
    std::uint32_t c0 = low(first + i);
    std::uint32_t c1 = high(first + i);
    std::uint32_t c2 = low(stream);
    std::uint32_t c3 = high(stream);
    std::uint32_t k0 = low(seed);
    std::uint32_t k1 = high(seed);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c0;
      const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c2;
      c0 = high(b) ^ c1 ^ k0;
      c1 = low(b);
      c2 = high(a) ^ c3 ^ k1;
      c3 = low(a);
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    u1[i] = uniform(c0);
    u2[i] = uniform(c1);
  }
}

// out = sqrt(-2 log u1) cos(2 pi u2), rounded to float; logs: of u1.  Whether all are sure to be
// those of normal_plainly().
//
// That takes the cosine of a rounded angle, at most 6.3 and 2^-53 of it wrong, by a library whose
// own error is below 2^-53: within 1e-15 of the true one.  So is this one, by Taylor's series in
// the quarter of a turn.  Where the result would be rounded to the same float with any cosine
// within 4e-15 of ours it is theirs.
PARADYSE_CLONES bool normal_by_series(const Floats& logs, const Floats& u2, Floats& out) {
  constexpr double kMargin = 4e-15;
  int unsure = 0;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const double turns = u2[i];
    const auto quarter = static_cast<int>(4 * turns + 0.5);  // the nearest
    const double x = 2 * std::numbers::pi * (turns - 0.25 * quarter);
    const double z = x * x;
    // up to x^15 and x^16: what is left out is below 5e-17 where |x| <= pi / 4
    const double sine =
        x * (1 + z * (-1. / 6 +
                      z * (1. / 120 +
                           z * (-1. / 5040 +
                                z * (1. / 362880 +
                                     z * (-1. / 39916800 +
                                          z * (1. / 6227020800 + z * (-1. / 1307674368000))))))));
    const double cosine =
        1 + z * (-1. / 2 +
                 z * (1. / 24 +
                      z * (-1. / 720 +
                           z * (1. / 40320 +
                                z * (-1. / 3628800 +
                                     z * (1. / 479001600 +
                                          z * (-1. / 87178291200 + z * (1. / 20922789888000))))))));
    const double of_quarter = (quarter & 1) != 0 ? sine : cosine;
    // cos(x + pi / 2) = -sin(x), cos(x + pi) = -cos(x), cos(x + 3 pi / 2) = sin(x)
    const double turned = ((quarter + 1) & 2) != 0 ? -of_quarter : of_quarter;
    const double radius = std::sqrt(-2.0 * static_cast<double>(logs[i]));
    const double value = radius * turned;
    const double margin = radius * kMargin;
    const auto least = static_cast<float>(value - margin);
    const auto most = static_cast<float>(value + margin);
    unsure |= static_cast<int>(!(least == most)) | static_cast<int>(value == 0);
    out[i] = least;
  }
  return unsure == 0;
}

// As torch does it.
void normal_plainly(const Floats& logs, const Floats& u2, Floats& out) {
  for (std::size_t i = 0; i < kBlock; ++i) {
    out[i] = static_cast<float>(
        std::sqrt(-2.0 * static_cast<double>(logs[i])) *
        std::cos(2.0 * std::numbers::pi * static_cast<double>(u2[i])));
  }
}

}  // namespace

void draw_normal(
    std::uint64_t seed, std::uint64_t stream, std::uint64_t first, std::span<float> out) {
  Floats u1;
  Floats u2;
  Floats numbers;
  for (std::size_t begin = 0; begin < out.size(); begin += kBlock) {
    draw_uniform(seed, stream, first + begin, u1, u2);
    for (float& u : u1) {
      u = std::log(u);
    }
    if (!normal_by_series(u1, u2, numbers)) {
      normal_plainly(u1, u2, numbers);
    }
    const std::size_t count = std::min(kBlock, out.size() - begin);
    std::copy_n(numbers.begin(), count, out.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

double uniform_from(double normal) {
  return std::numbers::sqrt3 * std::erf(normal * (std::numbers::sqrt2 / 2));
}

double truncated_from(double normal) {
  constexpr double kInside = 0.95449973610364158;  // of a normal within 2 deviations: erf(sqrt 2)
  constexpr double kDeviation = 0.87962566103423978;  // that of what is left of it
  // t with erf(t / sqrt 2) = kInside erf(|normal| / sqrt 2): by Newton's steps, which from zero
  // come nearer without going beyond, since erf is concave.
  const double share = kInside * std::erf(std::abs(normal) * (std::numbers::sqrt2 / 2));
  double t = 0;
  for (int step = 0; step < 64; ++step) {
    const double left = share - std::erf(t * (std::numbers::sqrt2 / 2));
    const double more = left * std::exp(t * t / 2) * std::sqrt(std::numbers::pi / 2);
    t += more;
    if (!(more > 1e-12)) {
      break;
    }
  }
  return std::copysign(std::min(t, 2.0) / kDeviation, normal);
}

}  // namespace paradyse
