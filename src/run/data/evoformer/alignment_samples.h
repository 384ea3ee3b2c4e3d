// Samples of alignments: letters to predict, and features that a rank makes of what it holds.
// Next: alignment_files.cc, alignment_samples.cc.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paradyse/run/sample_file.h"
#include "src/run/data/draw.h"
#include "src/run/data/evoformer/alignment.h"

namespace paradyse {

// Of an alignment's letters, those that are to be predicted.
inline constexpr double kPredictedShare = 0.15;

// With what is drawn for it.  It keeps what it needs of the alignment.
Sample sample_of(const Alignment& alignment, Draw draw);

// What a sample's size depends on: `extra` sequences are the extra stack's, `others` only told in
// the features of the rest.
struct AlignmentSizes {
  std::int64_t sequences = 0;
  std::int64_t residues = 0;
  bool openfold = false;
  std::int64_t extra = 0;
  std::int64_t others = 0;  // all that are not of the MSA
};
// Bytes that all ranks of a machine hold of it, and a rank of its letters (sample_memory.h).
double alignment_sample_bytes(const AlignmentSizes& sizes);
// Throws std::runtime_error where that is more than `available` bytes: how much it takes, how much
// there is, and the largest alignment that fits.
void expect_room(const std::string& where, const Alignment& alignment, std::int64_t available);

class AlignmentFile : public SampleFile {
 public:
  AlignmentFile(std::string file, BatchSizes sizes, std::vector<Alignment> alignments);

  [[nodiscard]] const std::vector<Alignment>& alignments() const { return alignments_; }
  [[nodiscard]] Sample sample(
      std::int64_t i, std::uint64_t seed, std::uint64_t draw) const override;
  // Throws as sample() of it would where no more than `available` bytes are there.
  void expect_room_for(std::int64_t i, std::int64_t available) const;

 private:
  void add_content(const AddBytes& add) const override;

  std::vector<Alignment> alignments_;
};

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
AlignmentFile read_alignments(
    const std::filesystem::path& file, bool openfold = false, const AlignmentReading& reading = {});

}  // namespace paradyse
