// Alignments of proteins, as files hold them; no torch.  Next: alignments.cc, alignment_rows.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace paradyse {

// A sequence that has gaps alone where the first has letters.
struct GapRow {
  std::string name;
  std::size_t line = 0;
};

// An alignment: Stockholm, where the file begins so, else A3M (A2M) or aligned FASTA.
struct Alignment {
  std::size_t line = 0;                              // of the file, where it begins
  std::vector<std::string> names;                    // [sequence]
  std::vector<std::vector<std::int32_t>> letters;    // [sequence][residue] class, from 0
  std::vector<std::vector<std::int32_t>> deletions;  // [..][..] insertions left out before it
  // [residue] Its place among all of the first sequence's, where some of them are masked: those are
  // left out.  Empty: none are.
  std::vector<std::int32_t> places = {};
  // [sequence][residue] 1 for letters that count, 0 for others.  Empty: all count.
  std::vector<std::vector<std::int8_t>> counts = {};
  std::vector<GapRow> gap_rows = {};
  bool marks_letters = false;  // its file says of letters that they are masked
  bool masks = false;          // a sample brings masks (EvoformerShape::msa_mask)
  bool openfold = false;       // a sample has the features of OpenFold's embeddings (evoformer.h)
  // Sequences that are the MSA of a sample, and that are its extra ones; what its sequences are
  // more than those is left out.
  std::int64_t msa = 0;
  std::int64_t extra = 0;  // 0: the model has no stack for them
};
// What is taken of alignments, beyond what their files say.
enum class MaskedResidues {
  none,
  marked,   // by "m" of Stockholm's #=GC MM
  unknown,  // those, and the residues of which the first sequence has no known letter
};
enum class MaskedLetters {
  none,
  marked,  // by "m" of Stockholm's #=GR of a sequence, MM
  ends,    // those, and gaps before a sequence's first letter and behind its last
};
struct AlignmentReading {
  bool surely_protein = false;  // letters may all be A, C, G, T, U and N
  MaskedResidues masked = MaskedResidues::marked;
  MaskedLetters letters = MaskedLetters::none;  // of a model with masks alone
  bool masks = false;                           // the model has masks
  // The most that a sample has of each; 0: all, and no extra ones.
  std::int64_t sequences = 0;
  std::int64_t extra_sequences = 0;
};
// Those of a model with a stack for extra sequences, where nobody says more: AlphaFold 2's
// clusters, and extra sequences in training (Jumper et al. 2021, supplement, table 4).
inline constexpr std::int64_t kMsaSequences = 512;
inline constexpr std::int64_t kExtraSequences = 1024;
// As data.masked_residues calls it; throws std::invalid_argument for another name.
MaskedResidues masked_residues(const std::string& name);
// As data.masked_letters calls it; throws likewise.
MaskedLetters masked_letters(const std::string& name);

// Residues are the columns in which the first sequence has a letter, as in A3M; what others have
// between them is counted as deletions.  Residues that are masked are left out, which is what
// OpenFold computes with msa_mask and pair_mask.  Letters that are masked stay, and do not count.
// A byte order mark, empty lines before the alignment and all ends of lines are read.  Small
// letters are insertions in A3M and letters elsewhere.  Names are unique in Stockholm; in FASTA
// they may repeat.  Throws std::runtime_error naming the line: an unknown letter, rows of unequal
// length, marks of a row that is not there, an alignment without a letter that counts, blocks or
// alignments that are not whole, another file in the middle, nucleotides (nine letters of ten, or
// all of a few), a file without sequences or of another format.
std::vector<Alignment> read_alignment_file(
    const std::filesystem::path& file, const AlignmentReading& reading = {});

}  // namespace paradyse
