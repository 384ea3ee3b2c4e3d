// Samples of models of several dims, read from files: frames of video, alignments of proteins.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/data.h"
#include "paradyse/run/detail/sample.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/alignment.h"

namespace paradyse {

// Clips of video as they are read.
struct Clips {
  at::Tensor latents;            // [B, C, T, h, w], as stored
  at::Tensor timesteps;          // [B] float64; undefined: drawn
  std::vector<at::Tensor> text;  // [B] of [tokens, caption_channels], as stored; empty: the model
                                 // has none
  std::int64_t patch = 1;
  at::Tensor frames_a_second = {};  // [B] float64, of an STDiT3 model; undefined: kFramesASecond
  StditShape shape = {};            // of the model: what a sample has
};

// A clip at noise level t and the velocity at which it gets clean, both [C, T, h, w] in float64, as
// the model takes them; with the text of clip `like`, of whose kind it is.
Sample clip_sample(
    const at::Tensor& clip,
    const at::Tensor& velocity,
    double t,
    const Clips& clips,
    std::int64_t like);
// The way back: `patches`, [frames, patches, C patch patch], as a clip of these sizes; or, as an
// STDiT3 model predicts them, [frames, patches, patch patch C] with or without variances.
at::Tensor clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch);
at::Tensor stdit3_clip_of(const at::Tensor& patches, at::IntArrayRef sizes, std::int64_t patch);
// float64, the same for (seed, draw) on every machine.
at::Tensor normal_noise(at::IntArrayRef sizes, std::uint64_t seed, std::uint64_t draw);

struct SampleFile {
  std::variant<Clips, std::vector<Alignment>> content;
  BatchSizes sizes;       // of the samples; rows: frames times patches, or letters
  std::string file = {};  // for messages

  [[nodiscard]] std::int64_t size() const { return std::ssize(sizes.lengths); }
  // Sample `i`.  Noise, its level and masks are those of (seed, draw), the same on every machine.
  // Throws std::runtime_error where this machine has no memory for it.
  [[nodiscard]] Sample sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const;
  // All of them, each as the draw of its number.
  [[nodiscard]] std::vector<Sample> samples(std::uint64_t seed) const;
  [[nodiscard]] std::string fingerprint() const;  // of what was read
};

// Samples of one file after the other.
class GridData {
 public:
  explicit GridData(
      std::vector<SampleFile> files,
      std::vector<std::string> notes = {},
      std::map<std::string, LeftOut> left_out = {});

  [[nodiscard]] const BatchSizes& sizes() const { return sizes_; }
  [[nodiscard]] std::int64_t size() const { return std::ssize(sizes_.lengths); }
  // The file that has sample `i`, and its number there.
  [[nodiscard]] std::pair<const SampleFile*, std::int64_t> place(std::int64_t i) const;
  // As SampleFile has it.
  [[nodiscard]] Sample sample(std::int64_t i, std::uint64_t seed, std::uint64_t draw) const;
  [[nodiscard]] std::vector<Sample> samples(std::uint64_t seed) const;
  [[nodiscard]] std::string fingerprint() const;
  // Sentences: what of the files is taken otherwise than one might expect.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }
  // [why] What is in folders and was not read.
  [[nodiscard]] const std::map<std::string, LeftOut>& left_out() const { return left_out_; }

 private:
  std::vector<SampleFile> files_;
  std::vector<std::string> notes_;
  std::map<std::string, LeftOut> left_out_;
  std::vector<std::int64_t> first_;  // sample of each file
  BatchSizes sizes_;
};

// By the model: read_frames() or read_alignments() of each file; of a folder, in the order of their
// names, all files in it that are, or are named as, such data.  Others there are left out and
// counted: hidden ones, folders, and what plainly is something else.  Throws std::runtime_error,
// too, for a file that is named twice, a folder without data and what is neither;
// std::invalid_argument where extra sequences are asked for of a model without a stack for them, or
// masked letters of one without masks.
GridData read_grid_data(
    const std::vector<std::filesystem::path>& paths,
    const Model& model,
    const AlignmentReading& reading = {});

// A safetensors file with `latents` [B, C, T, h, w] and, if the clips' noise levels are to be
// these, `timesteps` [B] from 0 (all noise) to 1 (none), else they are drawn; of a model with text
// also `text` [B, tokens, caption_channels], and where clips have other numbers of tokens
// `text_mask` [B, tokens]: those that are 0 are no part of the sample.  A patch is `patch` x
// `patch` of a frame.  Of a sample x_t = t x + (1 - t) noise, and the velocity that is to be
// predicted is x - noise (rectified flow, Liu et al. 2022).  For an STDiT3 model there may be `fps`
// [B]; it counts noise levels from 0 (none) to 1000 (all), and places of patches as Open-Sora 1.2
// does for frames of kPixelsOfLatent pixels a latent.
// Throws std::runtime_error naming the file, what is found and what is needed, also where a sample
// takes more memory than the machine has.
SampleFile read_frames(const std::filesystem::path& file, const StditShape& shape);

// Every alignment of the file is a sample: 15 % of the letters are to
// be predicted, of which 70 % are masked, 10 % become any amino acid, 10 % that of another sequence
// and 10 % stay (Jumper et al. 2021, supplement 1.2.7).  Throws as read_alignment_file(), and where
// a sample takes more memory than the machine has.
//
// Of more sequences than reading.sequences the first and others that are drawn are the MSA, and of
// the rest so many as reading.extra_sequences, drawn too, are extra sequences.  Of none a model
// with a stack for them gets the first one again; one with masks a row of which no letter counts,
// as OpenFold pads.
//
// Masked letters are not predicted.  They count for no cluster, neither in agreement nor in means.
//
// Features for OpenFold's embeddings (`openfold`) are of one chain, without breaks.  Each sequence
// of the MSA is a cluster of itself and of those of the rest that agree with it in most letters,
// but for gaps and masked ones (supplement 1.2.7).
SampleFile read_alignments(
    const std::filesystem::path& file, bool openfold = false, const AlignmentReading& reading = {});

}  // namespace paradyse
