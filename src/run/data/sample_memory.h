// Whether samples fit into the machine's memory, said before it is taken.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "paradyse/plan/model.h"
#include "src/run/data/grid_data.h"

namespace paradyse {

// What all ranks of a machine hold of a sample's inputs in float32, and a rank of its letters:
// bytes, as a double, since sizes that nobody has memory for overflow integers.
// `extra` sequences are the extra stack's, `others` only told in the features of the rest.
struct AlignmentSizes {
  std::int64_t sequences = 0;
  std::int64_t residues = 0;
  bool openfold = false;
  std::int64_t extra = 0;
  std::int64_t others = 0;  // all that are not of the MSA
};
double alignment_sample_bytes(const AlignmentSizes& sizes);
// `sizes` [C, T, h, w].
double clip_sample_bytes(at::IntArrayRef sizes, const StditShape& shape);

// Each throws std::runtime_error where a sample takes more memory than `available` bytes: how much
// it takes, how much there is, and the largest sample that fits.
void expect_room(const std::string& where, const Alignment& alignment, std::int64_t available);
void expect_room(
    const std::string& where,
    at::IntArrayRef clip,
    const StditShape& shape,
    std::int64_t available);
// Of samples with these sizes of dims, `count` at once.
void expect_room(
    const Model& model,
    const std::map<std::string, std::int64_t>& dims,
    std::int64_t count,
    std::int64_t available);

}  // namespace paradyse
