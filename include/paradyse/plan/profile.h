// What `paradyse profile` measured: a file of one JSON object a line, which grows while it is
// measured, so that a profile that was killed goes on where it was.
//
// The first line says what was measured on; each further line is one probe. docs/internals/costs.md
// has the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/dtype.h"

namespace paradyse {

class FileEnd;

// What a profile is of.  Costs are good for runs whose header differs in nothing but `layers`
// (structured costs also for other shapes, lengths and ranks, with a note).
struct ProfileHeader {
  std::string machine;         // for people: processor, cores, memory, device
  std::string machine_sha256;  // fingerprint of it
  std::string model;           // its architecture
  std::string model_sha256;    // Model::sha256 with one layer
  std::int64_t hidden = 0;
  std::int64_t layers = 0;  // that were measured: layers are alike
  int ranks = 1;
  int ranks_per_node = 1;
  int cores = 1;  // that the ranks share
  std::string backend;
  std::string device;
  Dtype dtype = Dtype::float32;

  friend bool operator==(const ProfileHeader&, const ProfileHeader&) = default;
};

// The first field that differs, with both values as text.
struct HeaderDifference {
  std::string field;
  std::string there;
  std::string here;
};
std::optional<HeaderDifference> first_difference(
    const ProfileHeader& there, const ProfileHeader& here);
// "'dtype' is "float32" there and "bfloat16" here"; "" where no field differs.
std::string difference_of(const ProfileHeader& there, const ProfileHeader& here);

// Median of the repeats, and their range.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;

  friend bool operator==(const Spread&, const Spread&) = default;
};

enum class Outcome {
  measured,
  memory,  // would not fit the budget: not run
  time,    // would have taken longer than there was time for: not run
};

// One part of a layer at one length.
struct PartProbe {
  std::string part = {};      // "attention", "mlp", "rest", "optimizer"
  std::string strategy = {};  // a strategy's name, a verb, or ""
  std::string recompute = "none";
  int ranks = 1;            // of the group
  std::int64_t length = 0;  // tokens; of the optimizer, layers of the model
  // As in Messages: false where weights were whole, which leaves no gathers in its seconds.
  bool reshard_after_backward = true;
  Outcome outcome = Outcome::measured;
  std::array<Spread, kPartPhases> seconds{};  // wall, of one layer, by PartPhase
  PartWork work = {};                         // together() of the ranks
  // Of a core: what the ranks' threads used in all, over the cores; medians.  None: ranks have
  // cores of their own, or it is a profile of before this was measured.
  std::optional<std::array<double, kPartPhases>> processor_seconds = {};

  friend bool operator==(const PartProbe&, const PartProbe&) = default;
};

// A micro-batch of the cut model, all layers alike.
struct StepProbe {
  std::string attention = {};
  std::string mlp = {};
  std::string recompute = "none";
  int ranks = 1;
  std::int64_t length = 0;
  bool reshard_after_backward = true;  // as of its parts
  Outcome outcome = Outcome::measured;
  Spread seconds = {};  // forward and backward, on the slowest rank
  std::int64_t counted_saved_bytes = 0;
  std::int64_t saved_bytes = 0;         // measured, on the fullest rank; as the next two
  std::int64_t counted_peak_bytes = 0;  // by the fold
  std::int64_t peak_bytes = 0;

  friend bool operator==(const StepProbe&, const StepProbe&) = default;
};

// A collective among `ranks` ranks, `bytes` from one rank to each other one.
struct CollectiveProbe {
  std::string collective;
  int ranks = 1;
  std::int64_t bytes = 0;
  Spread seconds = {};

  friend bool operator==(const CollectiveProbe&, const CollectiveProbe&) = default;
};

// A kernel on one core, nothing beside it.
struct KernelProbe {
  // "matmul": [m, k] x [k, n]; "attention": causal, forward; on GPUs kFlashKernel, kDenseKernel:
  // forward and adjoint of a causal document
  std::string kernel;
  std::vector<std::int64_t> shape;  // m, k, n; tokens, heads, head_dim
  double flops = 0;
  Spread seconds = {};

  friend bool operator==(const KernelProbe&, const KernelProbe&) = default;
};

inline constexpr const char* kFlashKernel = "attention flash";
inline constexpr const char* kDenseKernel = "attention dense";  // cuDNN's, a document a call

struct Profile {
  ProfileHeader header;
  std::vector<PartProbe> parts = {};
  std::vector<StepProbe> steps = {};
  std::vector<CollectiveProbe> collectives = {};
  std::vector<KernelProbe> kernels = {};

  friend bool operator==(const Profile&, const Profile&) = default;
};

// Each probe once, in the order of first appearance: of what was measured in several rounds the
// median of the medians, the least and the most of all, and the largest bytes.  A probe that was
// measured in one of them is measured.
Profile pooled(const Profile& profile);

// Tokens from which on a document takes cuDNN less time than flash: the least length from which on
// it did at all that were measured.  Where it did not at the longest: twice that.  None: no length
// was measured with both.
std::optional<std::int64_t> attention_dense_from(const Profile& profile);

// Throws std::invalid_argument naming file, line and field, what stands there and what to do: no
// profile, another version, a missing or unknown field, a number that is negative or none.  Half a
// line at the end is what a killed profile leaves: it is passed over.
Profile read_profile(const std::filesystem::path& file);

// Adds probes to a file, each safe on the disk when add() returns.
class ProfileWriter {
 public:
  // Begins a new file, or goes on with one that has the same header (`known` gets what it holds).
  // Throws std::invalid_argument for a file of another header, saying which field differs and what
  // to do; nothing is overwritten.
  // Where the file cannot be written, also because another program does: std::runtime_error.
  ProfileWriter(const std::filesystem::path& file, const ProfileHeader& header, Profile& known);
  ~ProfileWriter();
  ProfileWriter(const ProfileWriter&) = delete;
  ProfileWriter& operator=(const ProfileWriter&) = delete;

  // Throw std::runtime_error where the disk is full or the like (the file is then as before), and
  // std::invalid_argument for a probe that could not be read back.
  void add(const PartProbe& probe);
  void add(const StepProbe& probe);
  void add(const CollectiveProbe& probe);
  void add(const KernelProbe& probe);

 private:
  std::unique_ptr<FileEnd> end_;
};

// How far measuring has come.
struct ProfileProgress {
  std::int64_t probes = 0;  // done
  std::int64_t of = 0;
  double seconds = 0;
  double seconds_of = 0;
  std::string what = {};  // under way
};

}  // namespace paradyse
