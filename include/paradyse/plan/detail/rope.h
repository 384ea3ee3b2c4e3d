// Rotary position embedding (Su et al. 2021), also stretched over more positions than a model was
// trained on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace paradyse {

// How rotary frequencies are stretched beyond the positions a model was trained on.
struct RopeScaling {
  enum class Type { none, linear, llama3, yarn };
  Type type = Type::none;
  double factor = 1.0;
  std::int64_t original_positions = 0;  // llama3, yarn: what the model was trained on
  double low_freq_factor = 1.0;         // llama3
  double high_freq_factor = 4.0;        // llama3
  double beta_fast = 32.0;              // yarn
  double beta_slow = 1.0;               // yarn
  double attention_factor = 1.0;        // yarn: of cosines and sines
  bool truncate = true;                 // yarn: borders are whole dims

  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

struct Rope {
  double theta = 10000.0;
  RopeScaling scaling = {};
  bool interleaved = false;  // pairs are columns 2i and 2i + 1 of a head, not i and i + D/2
  // The columns of a head that turn, the first and those from D/2 on, half of them each; 0: all.
  std::int64_t turned = 0;
  std::string along = {};  // positions are places in this row dim; "": of tokens in documents

  friend bool operator==(const Rope&, const Rope&) = default;
};

// Frequencies of the D/2 pairs of a head: position t turns pair i by t * frequency[i], which is 0
// of pairs that do not turn.
std::vector<double> rope_frequencies(const Rope& rope, std::int64_t head_dim);

}  // namespace paradyse
