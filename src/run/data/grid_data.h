// Samples of models of several dims, read from files: frames of video, alignments of proteins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/grid_models.h"
#include "paradyse/run/sample.h"

namespace paradyse {

// Samples of equal sizes, and these: Plan::dims.
struct GridData {
  std::vector<Sample> samples;
  std::map<std::string, std::int64_t> dims;

  [[nodiscard]] std::int64_t rows() const;  // of a sample: frames times patches, letters
};

// By the model: read_frames() or read_alignments().
GridData read_grid_data(
    const std::filesystem::path& file, const GridShape& shape, std::uint64_t seed);

// A safetensors file with `latents` [B, C, T, h, w] and, if the clips' noise levels are to be
// these, `timesteps` [B] from 0 (all noise) to 1 (none), else they are drawn.  A patch is `patch` x
// `patch` of a frame.  Noise is drawn: x_t = t x + (1 - t) noise, and the velocity that is to be
// predicted is x - noise (rectified flow, Liu et al. 2022); the same for the same seed everywhere.
// Throws std::runtime_error naming the file, what is found and what is needed.
GridData read_frames(
    const std::filesystem::path& file, const StditShape& shape, std::uint64_t seed);

// An alignment: Stockholm, where the file begins so, else A3M or aligned FASTA.
struct Alignment {
  std::vector<std::string> names;                    // [sequence]
  std::vector<std::vector<std::int32_t>> letters;    // [sequence][residue] class, from 0
  std::vector<std::vector<std::int32_t>> deletions;  // [..][..] insertions left out before it
};
// Residues are the columns in which the first sequence has a letter, as in A3M; what others have
// between them is counted as deletions.  Throws std::runtime_error naming the line: an unknown
// letter, rows of unequal length, a file without sequences.
std::vector<Alignment> read_alignment_file(const std::filesystem::path& file);

// Every alignment of the file, which must be of one size, is a sample: 15 % of the letters are to
// be predicted, of which 70 % are masked, 10 % become any amino acid, 10 % that of another sequence
// and 10 % stay (Jumper et al. 2021, supplement 1.2.7).  The same for the same seed everywhere.
GridData read_alignments(const std::filesystem::path& file, std::uint64_t seed);

}  // namespace paradyse
