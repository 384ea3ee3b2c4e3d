// Frames and alignments as files: what samples they become, and what is refused, by place.
#include "src/run/data/grid_data.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/weights.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/evoformer/alignment_samples.h"
#include "src/run/data/held.h"
#include "src/run/data/stdit/clips.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A file that goes with the test.
class File {
  test::Folder folder_;

 public:
  explicit File(const std::string& name) : path(folder_ / name) {}

  const fs::path path;
};

void expect_refused(const std::function<void()>& read, const std::vector<std::string>& what) {
  const std::string why = test::refusal<std::runtime_error>(read);
  for (const std::string& part : what) {
    EXPECT_THAT(why, HasSubstr(part));
  }
}

const StditShape kShape{.depth = 1, .hidden = 8, .heads = 2, .kv_heads = 2, .mlp_hidden = 8};

TEST(Frames, BecomePatchesNoiseAndVelocity) {
  const File file("frames.safetensors");
  const at::Tensor latents =
      at::arange(2 * 4 * 3 * 4 * 6, at::kDouble).view({2, 4, 3, 4, 6}).to(at::kFloat) / 100;
  test::write_tensors(
      file.path, {{"latents", latents}, {"timesteps", at::tensor({1.0, 0.25}, at::kDouble)}});
  const ClipFile data = read_frames(file.path, kShape);
  const DimSizes dims = {{"frames", 3}, {"patches", 6}};
  EXPECT_THAT(data.sizes().dims, ElementsAre(dims, dims));
  EXPECT_THAT(data.sizes().lengths, ElementsAre(18, 18));
  ASSERT_EQ(data.size(), 2);
  const std::vector<Sample> samples = data.samples(7);
  const Model model = stdit_model(kShape);
  for (std::size_t b = 0; b < 2; ++b) {
    const Sample& sample = samples[b];
    EXPECT_NO_THROW(check_sample(sample, model, dims));
    EXPECT_EQ(scored(sample, model), 18 * 16);
    const double t = b == 0 ? 1.0 : 0.25;
    const at::Tensor patches = sample.inputs.at("patches").whole();
    const at::Tensor velocity = sample.inputs.at("velocity").whole();
    // x_t = t x + (1 - t) noise and v = x - noise, so x = x_t + (1 - t) v.
    const at::Tensor clean = patches.narrow(2, 0, 16) + (1 - t) * velocity;
    for (std::int64_t f = 0; f < 3; ++f) {
      for (std::int64_t patch = 0; patch < 6; ++patch) {
        for (std::int64_t c = 0; c < 4; ++c) {
          for (std::int64_t i = 0; i < 4; ++i) {
            const double x = latents[static_cast<std::int64_t>(b)][c][f][patch / 3 * 2 + i / 2]
                                    [patch % 3 * 2 + i % 2]
                                        .item<double>();
            EXPECT_NEAR(clean[f][patch][c * 4 + i].item<double>(), x, 1e-12);
          }
        }
      }
    }
    EXPECT_NEAR(sample.inputs.at("time").whole()[0].item<double>(), std::cos(1000 * t), 1e-9);
    // Every place has features of its own.
    std::set<std::string> places;
    for (std::int64_t row = 0; row < 18; ++row) {
      const at::Tensor place = patches.view({18, -1})[row].narrow(0, 16, kPlaceFeatures);
      std::string text;
      for (std::int64_t i = 0; i < kPlaceFeatures; ++i) {
        text += std::to_string(place[i].item<double>()) + " ";
      }
      places.insert(text);
    }
    EXPECT_EQ(places.size(), 18U);
  }
  // Noise is standard normal, and the seed's.
  const at::Tensor noise = samples[1].inputs.at("patches").whole().narrow(2, 0, 16) -
                           0.25 * samples[1].inputs.at("velocity").whole();
  EXPECT_NEAR(noise.mean().item<double>(), 0, 0.2);
  EXPECT_NEAR(noise.std().item<double>(), 1, 0.2);
  const auto patches = [&](std::uint64_t seed) {
    return data.sample(1, seed, 1).inputs.at("patches").whole();
  };
  EXPECT_TRUE(at::equal(patches(7), patches(7)));
  EXPECT_FALSE(at::equal(patches(7), patches(8)));
}

TEST(Frames, AreRefusedByWhatIsWrong) {
  const File file("bad.safetensors");
  const auto refused = [&](const test::Weights& tensors, const std::vector<std::string>& what) {
    test::write_tensors(file.path, tensors);
    expect_refused([&] { read_frames(file.path, kShape); }, what);
  };
  refused({{"latents", at::zeros({1, 3, 2, 4, 4})}}, {"[1, 3, 2, 4, 4]", "4, frames"});
  refused({{"latents", at::zeros({1, 4, 2, 3, 4})}}, {"[1, 4, 2, 3, 4]", "patch_size 2"});
  refused(
      {{"latents", at::zeros({4, 2, 4, 4})}},
      {"[4, 2, 4, 4]", "4 dims", "a single clip is the first of one"});
  refused({{"frames", at::zeros({1, 4, 2, 4, 4})}}, {"'frames' is not known"});
  at::Tensor latents = at::zeros({2, 4, 3, 4, 4});
  latents[1][0][2][1][1] = std::numeric_limits<double>::quiet_NaN();
  latents[1][3][2][0][0] = std::numeric_limits<double>::infinity();
  refused({{"latents", latents}}, {"clip 1", "2 numbers", "not finite", "frame 2"});
  refused(
      {{"latents", at::zeros({2, 4, 2, 4, 4})}, {"timesteps", at::zeros({3})}},
      {"'timesteps' is [3]", "2 clips"});
  refused(
      {{"latents", at::zeros({1, 4, 2, 4, 4})}, {"timesteps", at::full({1}, 1.5)}},
      {"1.5", "from 0"});
}

// Each message says what is found, what is needed and what to do.
TEST(Frames, AreRefusedWithARemedy) {
  const File file("shapes.safetensors");
  const auto refused = [&](const at::Tensor& latents, const std::vector<std::string>& what) {
    test::write_tensors(file.path, {{"latents", latents}});
    expect_refused([&] { read_frames(file.path, kShape); }, what);
  };
  for (const at::ScalarType type : {at::kByte, at::kChar, at::kInt, at::kLong, at::kBool}) {
    refused(at::ones({1, 4, 2, 4, 4}, type), {"'latents' is of type", "floating-point"});
  }
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    test::write_tensors(file.path, {{"latents", at::ones({1, 4, 2, 4, 4}, type)}});
    EXPECT_EQ(read_frames(file.path, kShape).size(), 1);
  }
  refused(at::zeros({0, 4, 2, 4, 4}), {"no clips"});
  refused(at::zeros({1, 4, 0, 4, 4}), {"no frames"});
  refused(at::zeros({1, 4, 2, 4, 0}), {"no width"});
  refused(at::zeros({1, 2, 4, 4, 4}), {"2 channels", "transpose"});
  refused(at::zeros({1, 3, 2, 4, 4}), {"3 channels", "in_channels 4"});
  refused(at::zeros({1, 4, 2, 5, 4}), {"height 5", "crop to 4 or pad to 6"});
  refused(at::zeros({1, 4, 2, 4, 1}), {"width 1", "pad to 2"});
  test::write_tensors(file.path, {{"timesteps", at::zeros({1})}});
  expect_refused([&] { read_frames(file.path, kShape); }, {"no 'latents'", "[clips, 4, frames"});
}

// A file of so many frames needs no disk for its zeros, and a sample of it no memory to be refused.
TEST(Frames, AreRefusedWhereThereIsNoMemory) {
  const File file("long.safetensors");
  constexpr std::int64_t kFrames = std::int64_t{1} << 36;
  const std::uint64_t bytes = std::uint64_t{4} * 4 * kFrames * 4;
  std::string header = R"({"latents":{"dtype":"F32","shape":[1,4,)" + std::to_string(kFrames) +
                       R"(,2,2],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = header.size();
  {
    std::ofstream stream(file.path, std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&length), sizeof(length));
    stream << header;
  }
  std::error_code error;
  fs::resize_file(file.path, sizeof(length) + length + bytes, error);
  if (error) {  // files here are shorter: of a clip that is in memory the sample is refused
    const at::Tensor latents = at::zeros({1, 4, 1, 2, 2}).expand({1, 4, kFrames, 2, 2});
    const ClipFile data(
        "long",
        {.lengths = {kFrames}, .dims = {}},
        {.latents = latents, .timesteps = {}, .text = {}, .patch = 2});
    expect_refused([&] { (void)data.sample(0, 1, 0); }, {"long: clip 0", "TiB", "at most"});
    return;
  }
  expect_refused(
      [&] { read_frames(file.path, kShape); }, {"'latents' takes 4.0 TiB", "available", "fewer"});
}

// What is masked of a text is no part of the sample, whatever stands there.
TEST(Frames, BringTheTextThatIsNotMasked) {
  StditShape shape = kShape;
  shape.caption_channels = 3;
  const File file("text.safetensors");
  at::Tensor text = at::arange(2 * 4 * 3, at::kDouble).view({2, 4, 3});
  const auto write = [&](const at::Tensor& mask) {
    test::write_tensors(
        file.path, {{"latents", at::ones({2, 4, 3, 4, 6})}, {"text", text}, {"text_mask", mask}});
  };
  text[1][1].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor mask = at::tensor({1, 1, 1, 1, 1, 0, 0, 1}, at::kLong).view({2, 4});
  for (const at::ScalarType type : {at::kBool, at::kLong, at::kFloat}) {
    write(mask.to(type));
    const ClipFile data = read_frames(file.path, shape);
    EXPECT_EQ(data.sizes().dims[0].at("text"), 4);
    EXPECT_EQ(data.sizes().dims[1].at("text"), 2);
    const std::vector<Sample> samples = data.samples(7);
    EXPECT_TRUE(at::equal(samples[0].inputs.at("text").whole(), text[0]));
    EXPECT_TRUE(
        at::equal(samples[1].inputs.at("text").whole(), at::stack({text[1][0], text[1][3]})));
    for (std::size_t b = 0; b < 2; ++b) {
      EXPECT_NO_THROW(check_sample(samples[b], stdit_model(shape), data.sizes().dims[b]));
    }
  }
  const auto refused = [&](const at::Tensor& wrong, const std::string& what) {
    write(wrong);
    expect_refused([&] { read_frames(file.path, shape); }, {what});
  };
  refused(at::ones({2, 4}), "clip 1 of 'text' has 3 numbers that are not finite");
  refused(at::full({2, 4}, -1e9), "'text_mask' has -1000000000");
  refused(at::ones({2, 3}), "'text_mask' is [2, 3]");
  refused(at::zeros({2, 4}), "leaves clip 0 no token");
  write(mask);
  expect_refused([&] { read_frames(file.path, kShape); }, {"no caption_channels"});
}

// Clips of unlike sizes are in files of their own.
TEST(Frames, AreReadFromSeveralFiles) {
  const test::Folder folder;
  const auto file = [&](const std::string& name, std::int64_t clips, std::int64_t frames) {
    const fs::path path = folder / name;
    test::write_tensors(path, {{"latents", at::randn({clips, 4, frames, 2, 4}, at::kFloat)}});
    return path;
  };
  const fs::path a = file("a.safetensors", 2, 3);
  const fs::path b = file("b.safetensors", 1, 5);
  const Model model = kShape;
  const GridData data = read_grid_data({b, a}, model);
  EXPECT_EQ(data.sizes().lengths, (std::vector<std::int64_t>{10, 6, 6}));
  EXPECT_EQ(data.place(2), std::pair(data.place(1).first, std::int64_t{1}));
  const Sample alone = read_frames(a, kShape).sample(1, 7, 9);
  EXPECT_TRUE(at::equal(
      data.sample(2, 7, 9).inputs.at("patches").whole(), alone.inputs.at("patches").whole()));
  EXPECT_EQ(data.samples(1).size(), 3U);
  EXPECT_EQ(
      read_grid_data({folder}, model).fingerprint(), read_grid_data({a, b}, model).fingerprint());
  EXPECT_NE(read_grid_data({a, b}, model).fingerprint(), data.fingerprint());
  EXPECT_EQ(read_grid_data({a}, model).fingerprint(), read_frames(a, kShape).fingerprint());
  expect_refused([&] { read_grid_data({folder, a}, model); }, {"given twice"});
  fs::create_directory(folder / "empty");
  expect_refused([&] { read_grid_data({folder / "empty"}, model); }, {"no files"});
}

TEST(Alignments, HaveSizesOfTheirOwn) {
  const File file("two.sto");
  std::ofstream(file.path) << "# STOCKHOLM 1.0\na ACD\nb A-D\n//\n# STOCKHOLM 1.0\na ACDEF\n//\n";
  const AlignmentFile data = read_alignments(file.path);
  EXPECT_THAT(data.sizes().lengths, ElementsAre(6, 5));
  EXPECT_EQ(data.sizes().dims[0].at("sequences"), 2);
  EXPECT_EQ(data.sizes().dims[1].at("j"), 5);
  const std::vector<Sample> samples = data.samples(7);
  for (std::size_t a = 0; a < 2; ++a) {
    EXPECT_NO_THROW(check_sample(samples[a], evoformer_model({.blocks = 1}), data.sizes().dims[a]));
  }
}

// [row] letters of features that begin with their class.
std::vector<std::vector<std::int64_t>> letters_in(const at::Tensor& features) {
  const at::Tensor classes = features.narrow(2, 0, kMsaClasses).argmax(2);
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t i = 0; i < classes.size(0); ++i) {
    std::vector<std::int64_t>& row = rows.emplace_back();
    for (std::int64_t j = 0; j < classes.size(1); ++j) {
      row.push_back(classes[i][j].item<std::int64_t>());
    }
  }
  return rows;
}

// Rows beyond the MSA are the extra ones, and each counts in the cluster of the row that it agrees
// with most, here found once more.
TEST(Alignments, HaveExtraSequencesInClusters) {
  const File file("extra.a3m");
  std::ofstream(file.path) << ">a\nACDEFG\n>b\nACDKLM\n>c\nACkDEF-\n>d\n-CDKLM\n>e\nVCDKLM\n";
  const Alignment whole = read_alignment_file(file.path).at(0);
  const AlignmentFile data =
      read_alignments(file.path, true, {.sequences = 2, .extra_sequences = 9});
  EXPECT_EQ(data.sizes().lengths.front(), 12);
  EXPECT_EQ(data.sizes().dims.front().at("extra_sequences"), 3);
  const Model model = test::with_extra_blocks(test::small_evoformer(1), 1);
  std::set<std::vector<std::int64_t>> seconds;
  for (std::uint64_t draw = 0; draw < 12; ++draw) {
    const Sample sample = data.sample(0, 3, draw);
    EXPECT_NO_THROW(check_sample(sample, model, data.sizes().dims.front()));
    const at::Tensor msa =
        sample.inputs.at("msa").whole().narrow(2, kTargetFeatures, kLetterFeatures);
    const at::Tensor extra = sample.inputs.at("extra_msa").whole();
    const auto seen = letters_in(msa);
    at::Tensor counts = msa.narrow(2, 0, kMsaClasses).clone();
    at::Tensor deletions = at::zeros({2, 6}, at::kDouble);
    at::Tensor members = at::ones({2}, at::kDouble);
    std::set<std::size_t> left = {1, 2, 3, 4};
    const auto rows = letters_in(extra);
    for (std::size_t e = 0; e < rows.size(); ++e) {
      const auto row = std::ranges::find_if(
          left, [&](std::size_t i) { return std::ranges::equal(whole.letters[i], rows[e]); });
      ASSERT_NE(row, left.end());
      std::vector<int> agreeing;
      for (const auto& of_msa : seen) {
        int same = 0;
        for (std::size_t j = 0; j < 6; ++j) {
          same += of_msa[j] == rows[e][j] && of_msa[j] != 21 && of_msa[j] != 22 ? 1 : 0;
        }
        agreeing.push_back(same);
      }
      const std::int64_t cluster = agreeing[1] > agreeing[0] ? 1 : 0;
      members[cluster] += 1;
      for (std::int64_t j = 0; j < 6; ++j) {
        counts[cluster][j][rows[e][idx(j)]] += 1;
        deletions[cluster][j] += whole.deletions[*row][idx(j)];
        const double deleted = whole.deletions[*row][idx(j)];
        EXPECT_EQ(extra[static_cast<std::int64_t>(e)][j][23].item<double>(), deleted > 0 ? 1 : 0);
        EXPECT_NEAR(
            extra[static_cast<std::int64_t>(e)][j][24].item<double>(),
            std::atan(deleted / 3) * 2 / M_PI,
            1e-15);
      }
      left.erase(row);
    }
    ASSERT_EQ(left.size(), 1U);
    seconds.insert({static_cast<std::int64_t>(*left.begin())});
    for (std::int64_t j = 0; j < 6; ++j) {
      deletions[1][j] += whole.deletions[*left.begin()][idx(j)];
    }
    const at::Tensor profile = msa.narrow(2, kMsaClasses + 2, kMsaClasses);
    EXPECT_TRUE(at::allclose(profile, counts / members.view({2, 1, 1}), 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(
        msa.select(2, kLetterFeatures - 1),
        at::atan(deletions / members.view({2, 1}) / 3) * (2 / M_PI),
        1e-12,
        1e-12));
  }
  EXPECT_GE(seconds.size(), 3U);  // which row is the other of the MSA is drawn
}

TEST(Alignments, HaveSoManyExtraSequencesAsTheModelTakes) {
  const File file("extra.a3m");
  std::ofstream(file.path) << ">a\nACDEFG\n>b\nACDKLM\n>c\nVCDKLM\n";
  const auto extra = [&](std::int64_t sequences, std::int64_t most) {
    return read_alignments(file.path, true, {.sequences = sequences, .extra_sequences = most})
        .sizes()
        .dims.front()
        .at("extra_sequences");
  };
  EXPECT_EQ(extra(1, 9), 2);
  EXPECT_EQ(extra(1, 1), 1);
  EXPECT_EQ(extra(0, 9), 1);
  // of none the first row is there once more, and nothing else is drawn than without
  const AlignmentFile none = read_alignments(file.path, true, {.extra_sequences = 9});
  const Sample sample = none.sample(0, 3, 0);
  EXPECT_EQ(
      letters_in(sample.inputs.at("extra_msa").whole()).at(0),
      (std::vector<std::int64_t>{0, 4, 3, 6, 13, 7}));
  EXPECT_TRUE(at::equal(
      sample.inputs.at("msa").whole(),
      read_alignments(file.path, true).sample(0, 3, 0).inputs.at("msa").whole()));
  // by the model, and not where it has no stack for them
  const Model model = test::with_extra_blocks(test::small_evoformer(1), 1);
  EXPECT_TRUE(read_grid_data({file.path}, model).sizes().dims.front().contains("extra_sequences"));
  const Model trunk = test::in_openfold(test::small_evoformer(1));
  EXPECT_FALSE(read_grid_data({file.path}, trunk).sizes().dims.front().contains("extra_sequences"));
  EXPECT_EQ(
      read_grid_data({file.path}, trunk, {.sequences = 2}).sizes().dims.front().at("sequences"), 2);
  EXPECT_THAT(
      [&] { read_grid_data({file.path}, trunk, {.extra_sequences = 2}); },
      testing::ThrowsMessage<std::invalid_argument>(HasSubstr("no_extra_blocks")));
}

TEST(Alignments, AreReadAlike) {
  const File stockholm("a.sto");
  std::ofstream(stockholm.path) << "# STOCKHOLM 1.0\n#=GF ID x\n\nfirst  AC-\nsecond .cD\n\n"
                                   "first  D.E\n#=GC RF xxx\nsecond GhK\n//\n";
  const File a3m("a.a3m");
  std::ofstream(a3m.path) << ">first a protein\nACDE\n>second\n-CdGhK\n";
  const Alignment one = read_alignment_file(stockholm.path).at(0);
  EXPECT_THAT(one.names, ElementsAre("first", "second"));
  EXPECT_THAT(one.letters[0], ElementsAre(0, 4, 3, 6));    // A C D E
  EXPECT_THAT(one.letters[1], ElementsAre(21, 4, 7, 11));  // - C G K
  EXPECT_THAT(one.deletions[1], ElementsAre(0, 0, 1, 1));
  const Alignment other = read_alignment_file(a3m.path).at(0);
  EXPECT_EQ(other.letters, one.letters);
  EXPECT_EQ(other.deletions, one.deletions);
  EXPECT_EQ(other.names, one.names);
}

// Places stay those of the whole sequence, and what is masked leaves no trace of its letters.
TEST(Alignments, LeaveOutResiduesThatTheirFileMasks) {
  const auto content = [](const File& file, const std::string& rows) {
    std::ofstream(file.path) << "# STOCKHOLM 1.0\n" << rows << "//\n";
    return read_alignments(file.path, /*openfold=*/true);
  };
  const File file("masked.sto");
  const AlignmentFile masked = content(
      file, "a ACD-E\nb A-DkF\n#=GC MM .m..m\n\na GHI\nb GHI\n\na KLM\nb K-L\n#=GC MM ..m\n");
  const Alignment one = read_alignment_file(file.path).at(0);
  EXPECT_THAT(one.letters[0], ElementsAre(0, 3, 7, 8, 9, 11, 10));  // A D G H I K L
  EXPECT_THAT(one.letters[1], ElementsAre(0, 3, 7, 8, 9, 11, 21));  // A D G H I K -
  EXPECT_THAT(one.deletions[1], ElementsAre(0, 0, 0, 0, 0, 0, 0));  // k is before a masked one
  EXPECT_THAT(one.places, ElementsAre(0, 2, 4, 5, 6, 7, 8));
  EXPECT_EQ(masked.sizes().dims.front().at("j"), 7);
  const Sample sample = masked.sample(0, 3, 0);
  const at::Tensor apart =
      sample.inputs.at("pair").whole().narrow(2, 2 * kTargetFeatures, kPlaceBins);
  EXPECT_EQ(apart[2][1].argmax().item<std::int64_t>(), 32 + 2);
  EXPECT_EQ(apart[0][6].argmax().item<std::int64_t>(), 32 - 8);
  const AlignmentFile other = content(
      file, "a AVD-E\nb AWDkL\n#=GC MM .m..m\n\na GHI\nb GHI\n\na KLF\nb K-R\n#=GC MM ..m\n");
  EXPECT_TRUE(
      at::equal(other.sample(0, 3, 0).inputs.at("msa").whole(), sample.inputs.at("msa").whole()));
  EXPECT_EQ(other.fingerprint(), masked.fingerprint());
  const AlignmentFile moved = content(file, "a ADEGHIKLC\nb ADFGHIK-K\n#=GC MM ..m.....m\n");
  EXPECT_EQ(read_alignment_file(file.path).at(0).letters, one.letters);
  EXPECT_NE(moved.fingerprint(), masked.fingerprint());
  EXPECT_THAT(
      read_alignment_file((content(file, "a ACD\n#=GC MM ...\n"), file.path)).at(0).places,
      testing::IsEmpty());
  const auto places = [&](MaskedResidues which) {
    std::ofstream(file.path) << "# STOCKHOLM 1.0\na ACXD\nb AXCD\n#=GC MM m...\n//\n";
    return read_alignment_file(file.path, {.masked = which}).at(0).places;
  };
  EXPECT_THAT(places(MaskedResidues::none), testing::IsEmpty());
  EXPECT_THAT(places(MaskedResidues::marked), ElementsAre(1, 2, 3));
  EXPECT_THAT(places(MaskedResidues::unknown), ElementsAre(1, 3));
  const File a3m("unknown.a3m");
  std::ofstream(a3m.path) << ">a\nAXD\n>b\nX-D\n";
  EXPECT_THAT(
      read_alignment_file(a3m.path, {.masked = masked_residues("unknown")}).at(0).letters[1],
      ElementsAre(20, 3));
  EXPECT_THROW(masked_residues("all"), std::invalid_argument);
  std::ofstream(file.path) << "# STOCKHOLM 1.0\na A-D\n#=GC MM m.m\n//\n";
  expect_refused([&] { read_alignment_file(file.path); }, {":2: ", "all 2 residues", "#=GC MM"});
}

using Counts = std::vector<std::vector<std::int8_t>>;

// Of a Stockholm file with these rows, by marks of its sequences or by their ends.
Counts counts_of(const std::string& rows, MaskedLetters letters) {
  const File file("letters.sto");
  std::ofstream(file.path) << "# STOCKHOLM 1.0\n" << rows << "//\n";
  return read_alignment_file(file.path, {.letters = letters}).at(0).counts;
}

TEST(Alignments, MaskLettersThatTheirFileMarks) {
  const std::string rows =
      "a ACDE\nb A-DF\n#=GR b MM .m.m\n#=GR b SS HHHH\n\n"
      "#=GR c MM m.\na GH\nb GH\nc -K\n";
  const std::string all =
      "a ACDE\nb A-DF\nc ACDE\n#=GR b MM .m.m\n\n"
      "#=GR c MM m.\na GH\nb GH\nc -K\n";
  EXPECT_EQ(
      counts_of(all, MaskedLetters::marked),
      (Counts{{1, 1, 1, 1, 1, 1}, {1, 0, 1, 0, 1, 1}, {1, 1, 1, 1, 0, 1}}));
  EXPECT_THAT(counts_of(all, MaskedLetters::none), testing::IsEmpty());
  EXPECT_THAT(counts_of("a ACD\n#=GR a MM ...\n", MaskedLetters::marked), testing::IsEmpty());
  // of columns that are no residues, or left out, nothing is left
  EXPECT_EQ(
      counts_of("a A-DE\nb ACDE\n#=GR b MM .mm.\n#=GC MM ...m\n", MaskedLetters::marked),
      (Counts{{1, 1}, {1, 0}}));
  expect_refused(
      [] { counts_of("a ACD\n#=GR b MM ..m\n", MaskedLetters::marked); },
      {":3: ", "'#=GR b MM'", "'b'", "no row"});
  EXPECT_NO_THROW(counts_of("a ACD\n#=GR b MM ..m\n", MaskedLetters::none));
  expect_refused(
      [] { counts_of("a ACD\n#=GR a MM ..\n", MaskedLetters::none); }, {":3: ", "has 2 columns"});
  expect_refused(
      [] { counts_of("a ACD\n#=GR a MM mmm\n", MaskedLetters::marked); },
      {":2: ", "all letters", "data.masked_letters"});
  expect_refused([&] { counts_of(rows, MaskedLetters::marked); }, {"'c'", "first block"});
  EXPECT_EQ(masked_letters("ends"), MaskedLetters::ends);
  EXPECT_THROW(masked_letters("gaps"), std::invalid_argument);
}

// What a file says of its letters and what is asked for may differ: that is said.
TEST(Alignments, NoteMarksThatDoNothing) {
  const EvoformerShape shape = test::small_evoformer(1);
  const Model plain = shape;
  const Model masks = test::with_masks(shape);
  const auto notes = [](const std::string& name,
                        const std::string& text,
                        const Model& model,
                        const char* letters) {
    const File file(name);
    std::ofstream(file.path) << text;
    return read_grid_data({file.path}, model, {.masked_letters = letters}).notes();
  };
  const std::string marked = "# STOCKHOLM 1.0\na ACDE\nb ACDE\n#=GR b MM .m..\n//\n";
  const std::string others = "# STOCKHOLM 1.0\na ACDE\nb ACDE\n#=GR b MM ....\n//\n";
  const std::string a3m = ">a\nACDE\n>b\nACDE\n";
  EXPECT_THAT(
      notes("m.sto", marked, masks, "none"),
      testing::ElementsAre(
          AllOf(HasSubstr("m.sto marks letters"), HasSubstr("masked_letters is none"))));
  EXPECT_THAT(notes("m.sto", marked, plain, "none"), testing::ElementsAre(HasSubstr("msa_mask")));
  EXPECT_THAT(
      notes("m.sto", others, masks, "marked"), testing::ElementsAre(HasSubstr("no file marks")));
  EXPECT_THAT(
      notes("m.a3m", a3m, masks, "marked"), testing::ElementsAre(HasSubstr("no file marks")));
  EXPECT_THAT(notes("m.sto", marked, masks, "marked"), testing::IsEmpty());
  EXPECT_THAT(notes("m.sto", marked, masks, "ends"), testing::IsEmpty());
  EXPECT_THAT(notes("m.a3m", a3m, masks, "ends"), testing::IsEmpty());
  EXPECT_THAT(notes("m.a3m", a3m, masks, "none"), testing::IsEmpty());
}

// Gaps at the ends, where a sequence is not aligned; those between its letters are deletions.
TEST(Alignments, MaskTheEndsOfSequences) {
  EXPECT_EQ(
      counts_of(
          "a ACDEFG\nb --D-F-\nc A----G\nd ------\ne .~DEF_\n#=GR a MM m.....\n",
          MaskedLetters::ends),
      (Counts{
          {0, 1, 1, 1, 1, 1},
          {0, 0, 1, 1, 1, 0},
          {1, 1, 1, 1, 1, 1},
          {0, 0, 0, 0, 0, 0},
          {0, 0, 1, 1, 1, 0}}));
  // letters of columns that are no residues are letters of the sequence
  EXPECT_EQ(
      counts_of("a A-CD-E\nb -CD---\nc ---DE-\n", MaskedLetters::ends),
      (Counts{{1, 1, 1, 1}, {0, 1, 0, 0}, {0, 0, 1, 0}}));
  // and so are insertions
  const File a3m("ends.a3m");
  std::ofstream(a3m.path) << ">a\nACDE\n>b\n-k-D-\n>c\nA-k--\n>d\nk-CD-k\n>e\n----\n";
  EXPECT_EQ(
      read_alignment_file(a3m.path, {.letters = MaskedLetters::ends}).at(0).counts,
      (Counts{{1, 1, 1, 1}, {0, 1, 1, 0}, {1, 1, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}}));
}

TEST(Alignments, BringMasksToModelsThatTakeThem) {
  const File file("letters.a3m");
  std::ofstream(file.path) << ">a\nACDEFG\n>b\n--DEFG\n>c\nACDE--\n>d\n--DEKL\n";
  const Model model = test::with_masks(test::with_extra_blocks(test::small_evoformer(1), 1));
  const auto read = [&](const Model& of, const char* letters) {
    return read_grid_data({file.path}, of, {.masked_letters = letters, .sequences = 2});
  };
  const GridData masked = read(model, "ends");
  const GridData whole = read(model, "none");
  EXPECT_NE(masked.fingerprint(), whole.fingerprint());
  for (std::uint64_t draw = 0; draw < 30; ++draw) {
    const Sample sample = masked.sample(0, 3, draw);
    EXPECT_NO_THROW(check_sample(sample, model, masked.sizes().dims.front()));
    const at::Tensor extra = sample.inputs.at("extra_msa").whole();
    const at::Tensor counts = sample.inputs.at("msa_mask").whole();
    const at::Tensor extra_counts = sample.inputs.at("extra_msa_mask").whole();
    EXPECT_TRUE(at::equal(extra.select(2, 21) == 0, extra_counts.squeeze(2) != 0));  // no gaps
    EXPECT_EQ(counts[0].sum().item<std::int64_t>(), 6);
    EXPECT_EQ(counts[1].sum().item<std::int64_t>(), 4);
    // the same is drawn, and what does not count is not predicted
    const Sample other = whole.sample(0, 3, draw);
    EXPECT_EQ(other.inputs.at("msa_mask").whole().sum().item<std::int64_t>(), 12);
    for (std::int64_t i = 0; i < 12; ++i) {
      const bool here = counts.view({-1})[i].item<std::int64_t>() != 0;
      EXPECT_EQ(sample.labels[idx(i)], here ? other.labels[idx(i)] : -1);
    }
    // profiles are of the letters that count
    const at::Tensor profile =
        sample.inputs.at("msa").whole().narrow(2, kTargetFeatures + kMsaClasses + 2, kMsaClasses);
    EXPECT_TRUE(at::allclose(profile.sum(2), at::ones({2, 6}, at::kDouble)));
    EXPECT_EQ(profile[0].select(1, 21).count_nonzero().item<std::int64_t>(), 0);
  }
  // rows that are padding: of an alignment that has no more
  const GridData none = read_grid_data({file.path}, model, {.sequences = 4});
  EXPECT_EQ(none.sizes().dims.front().at("extra_sequences"), 1);
  EXPECT_EQ(none.sample(0, 3, 0).inputs.at("extra_msa_mask").whole().sum().item<double>(), 0);
  EXPECT_EQ(none.sample(0, 3, 0).inputs.at("msa_mask").whole().sum().item<double>(), 24);
  // without masks all is as it was
  const Model plain = test::with_extra_blocks(test::small_evoformer(1), 1);
  const Sample before = read(plain, "none").sample(0, 3, 0);
  EXPECT_FALSE(before.inputs.contains("msa_mask"));
  EXPECT_TRUE(
      at::equal(before.inputs.at("msa").whole(), whole.sample(0, 3, 0).inputs.at("msa").whole()));
  EXPECT_EQ(read(plain, "none").fingerprint(), whole.fingerprint());
  for (const Model& other : {plain, Model(test::small_stdit(1))}) {
    EXPECT_THAT(
        [&] { read(other, "marked"); },
        testing::ThrowsMessage<std::invalid_argument>(HasSubstr("msa_mask = true")));
  }
  Sample wrong = whole.sample(0, 3, 0);
  wrong.inputs["msa_mask"] = at::full({2, 6, 1}, 0.5);
  EXPECT_THAT(
      [&] { check_sample(wrong, model, whole.sizes().dims.front()); },
      testing::ThrowsMessage<std::invalid_argument>(HasSubstr("other than 0 and 1")));
}

TEST(Alignments, BecomeFeaturesAndLabels) {
  const File file("b.a3m");
  std::string text;
  for (int s = 0; s < 40; ++s) {
    text += ">s" + std::to_string(s) + "\nACDEFGHIKLMNPQRSTVWYX-ACDE\n";
  }
  std::ofstream(file.path) << text;
  const AlignmentFile data = read_alignments(file.path);
  const Model model = evoformer_model({.blocks = 1});
  ASSERT_EQ(data.size(), 1);
  const Sample sample = data.sample(0, 3, 0);
  const DimSizes& dims = data.sizes().dims.front();
  EXPECT_NO_THROW(check_sample(sample, model, dims));
  EXPECT_EQ(dims.at("sequences"), 40);
  EXPECT_EQ(dims.at("i"), 25);  // the first row has a gap
  const std::int64_t rows = data.sizes().lengths.front();
  const std::int64_t predicted = scored(sample, model);
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(rows), 0.15, 0.04);
  const at::Tensor letters =
      sample.inputs.at("msa").whole().view({rows, kMsaFeatures}).narrow(1, 0, kMsaClasses);
  EXPECT_TRUE(at::equal(letters.sum(1), at::ones({rows}, at::kDouble)));
  std::int64_t masked = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto seen = static_cast<std::int32_t>(letters[row].argmax().item<std::int64_t>());
    const std::int32_t label = sample.labels[idx(row)];
    masked += seen == 22 ? 1 : 0;
    if (label < 0) {
      EXPECT_NE(seen, 22);
    }
  }
  EXPECT_NEAR(static_cast<double>(masked) / static_cast<double>(predicted), 0.7, 0.15);
  const at::Tensor& pair = sample.inputs.at("pair").whole();
  EXPECT_EQ(pair[5][3][2 * kMsaClasses + 32 + 2].item<double>(), 1);
  EXPECT_EQ(pair.sum().item<double>(), 3.0 * 25 * 25);
}

TEST(Alignments, AreRefusedByLine) {
  const File file("bad.sto");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& what) {
    std::ofstream(file.path) << text;
    expect_refused([&] { read_alignment_file(file.path); }, what);
  };
  refused(
      "# STOCKHOLM 1.0\na ACD\nb AC1\n//\n",
      {":3: ", "'1'", "'b'", "character 5", "numbers of positions"});
  refused("# STOCKHOLM 1.0\na ACD\nb AC\n//\n", {":3: ", "2 columns", "3", "line 2"});
  refused("# STOCKHOLM 1.0\nonlyaname\n", {":2: ", "a name and its row"});
  refused(">a\nAC\n>b\nACD\n", {":3: ", "3 columns"});
  refused("AC\n", {":1: ", "this is not an alignment"});
  refused("# STOCKHOLM 1.0\n//\n", {"has no sequences"});
  refused("", {"has no sequences"});
  refused(">a\n--\n>b\nAC\n", {":1: ", "no letters"});
  refused(">a\nAC*\n", {":2: ", "'*'", "stop"});
  refused(">a\nAC DE\n", {":2: ", "byte 0x20", "character 3", "blanks"});
  refused(
      ">a\nACD\n>b\nA\xe2\x80\x93"
      "D\n",
      {":4: ", "byte 0xe2", "- for a gap"});
  refused(">a\nACD\n>b\n>c\nACD\n", {":3: ", "'b' is empty"});
  refused(">a\nACD\n>b\n", {":3: ", "'b' is empty"});
  refused(">a\n", {":1: ", "'a' is empty"});
  expect_refused([] { read_alignment_file("/nowhere/x.sto"); }, {"cannot be read"});
}

TEST(Alignments, OfStockholmAreWhole) {
  const File file("blocks.sto");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& what) {
    std::ofstream(file.path) << "# STOCKHOLM 1.0\n" << text;
    expect_refused([&] { read_alignment_file(file.path); }, what);
  };
  // one merged with the next
  refused("a ACD\n# STOCKHOLM 1.0\nb ACD\n//\n", {":3: ", "of line 1 has no end", "\"//\""});
  refused("a ACD\n\n# STOCKHOLM 1.0\na EFG\n//\n", {":4: ", "of line 1 has no end"});
  refused("a ACD\n//\nb ACD\n//\n", {":4: ", "outside of an alignment"});
  refused("a ACD\n//\n//\n", {":4: ", "ends no alignment"});
  refused("a ACD\n", {":1: ", "no end", "cut off"});
  refused("a ACD\n//\n# STOCKHOLM 2.0\na ACD\n//\n", {":4: ", "'# STOCKHOLM 2.0'"});
  // blocks
  refused("a ACD\nb ACD\n\na EFG\n//\n", {":5: ", "no row of 'b'", "line 3"});
  refused("a ACD\n\na EFG\nb EFG\n//\n", {":5: ", "'b' is not in the first block", "line 2"});
  refused("a ACD\nb ACD\n\na EFG\nb EF\n//\n", {":6: ", "'b' has 2 columns", "line 5, has 3"});
  refused("a ACD\na ACD\n//\n", {":3: ", "'a' is in this block already, at line 2"});
  // markup of columns
  refused("a ACD\n#=GC RF xx\n//\n", {":3: ", "'#=GC RF' has 2 columns", "3"});
  refused("a ACD\n#=GR a SS HHHH\n//\n", {":3: ", "'#=GR a SS' has 4 columns", "3"});
  refused("a ACD\n\n#=GC RF xx\n//\n", {":4: ", "'#=GC RF' has 2 columns", "3"});

  std::ofstream(file.path) << "# STOCKHOLM 1.0\n#=GF ID x\n#=GS a DE text of any length\n"
                              "a acD\n#=GR a SS HH-\n_b AC_\n#=GC RF x.x\n\n"
                              "_b EF\na ef\n#=GC RF ..\n//\n\n# a comment\n";
  const Alignment read = read_alignment_file(file.path).at(0);
  EXPECT_THAT(read.names, ElementsAre("a", "_b"));
  EXPECT_THAT(read.letters[0], ElementsAre(0, 4, 3, 6, 13));
  EXPECT_THAT(read.letters[1], ElementsAre(0, 4, 21, 6, 13));
}

TEST(Alignments, OfOtherFormatsAreRefusedByName) {
  const File file("other.a3m");
  const auto refused = [&](const std::string& text, const std::vector<std::string>& what) {
    std::ofstream(file.path, std::ios::binary) << text;
    expect_refused([&] { read_alignment_file(file.path); }, what);
  };
  using namespace std::string_literals;
  refused("\x1f\x8b\x08\0\0"s, {"gzip", "gunzip"});
  refused("\x28\xb5\x2f\xfd\x24"s, {"zstd", "zstd -d"});
  refused("\xfd\x37zXZ\0"s, {"xz", "unxz"});
  refused("BZh91AY"s, {"bzip2"});
  refused("\xff\xfe>\0a\0\n\0"s, {"UTF-16", "iconv"});
  refused(">a\nAC\0D\n"s, {":2: ", "NUL byte (byte 2)", "repair"});
  refused("CLUSTAL W (1.82)\n\na ACD\n", {"Clustal", "convert"});
  refused("\nCLUSTAL O(1.2.4) multiple sequence alignment\n", {"Clustal", "convert"});
  refused(" 2 3\na ACD\nb ACD\n", {"Phylip", "convert"});
  refused("#NEXUS\nbegin data;\n", {"NEXUS", "convert"});
  refused("HEADER    HYDROLASE\n", {"PDB", "an alignment"});
  refused("ATOM      1  N   MET A   1\n", {"PDB", "an alignment"});
  refused("data_1ABC\n#\n", {"mmCIF", "an alignment"});
  refused("# made by a program\ndata_1ABC\n#\n", {"mmCIF", "an alignment"});
  refused("{\"a\": 1}\n", {"JSON"});
  refused("@read\nACGT\n+\nFFFF\n", {"FASTQ"});
  test::write_tensors(file.path, {{"latents", at::zeros({1})}});
  expect_refused([&] { read_alignment_file(file.path); }, {"tensors", "give an alignment"});
}

TEST(Alignments, OfNucleotidesAreRefused) {
  const File file("dna.fasta");
  const auto refused = [&](const std::string& text) {
    std::ofstream(file.path) << text;
    expect_refused([&] { read_alignment_file(file.path); }, {":1: ", "nucleotides", "translate"});
  };
  refused(">a\nACGTACGT\n>b\nACG-NCGT\n");
  refused(">a\nacguacgu\n>b\nacgu.cgu\n");
  refused(">a\nACGU\n>b\nA-GU\n>c\nACGN\n");
  refused(">a\nACGT\n>b\nACGT\n");
  std::ofstream(file.path) << "# STOCKHOLM 1.0\na ACGTACGTAC\n//\n";
  expect_refused([&] { read_alignment_file(file.path); }, {":2: ", "nucleotides"});
  // unless somebody knows better
  EXPECT_EQ(read_alignment_file(file.path, {.surely_protein = true}).size(), 1U);
  // a letter of another kind, or few: peptides
  for (const char* text : {">a\nACGTACGT\n>b\nACG-NCGW\n", ">a\nGAGA\n"}) {
    std::ofstream(file.path) << text;
    EXPECT_EQ(read_alignment_file(file.path).size(), 1U);
  }
}

// Places of patches, times and frames a second as Open-Sora's own module makes them, which it does
// in float32 (tests/golden/README.md).
TEST(Frames, OfStdit3HaveOpenSorasFeatures) {
  const auto folder =
      std::filesystem::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / "grid_stdit3";
  const Model model = open_model(folder).model;
  const SafetensorsReader stored(folder / "samples.safetensors");
  const at::Tensor fps = at::tensor({24.0, 8.0}, at::kDouble);
  for (const auto& [number, frames, height, width, timestep] :
       {std::tuple{0, 3, 4, 6, 437.5}, {1, 5, 2, 4, 911.25}}) {
    const std::string prefix = std::to_string(number) + ".";
    const at::Tensor clip =
        at::arange(2 * frames * height * width, at::kDouble).view({2, frames, height, width});
    const Clips clips{
        .latents = {},
        .timesteps = {},
        .text = {},
        .patch = 2,
        .frames_a_second = fps,
        .shape = stdit_shape(model)};
    const Sample sample = clip_sample(clip, 2 * clip, 1 - timestep / 1000, clips, number);
    const auto near = [&](const at::Tensor& ours, const at::Tensor& theirs, double tolerance) {
      ASSERT_EQ(ours.sizes(), theirs.sizes());
      EXPECT_LE((ours - theirs).abs().max().item<double>(), tolerance) << prefix;
    };
    const std::int64_t H = stdit_shape(model).hidden;
    near(
        sample.inputs.at("patches").whole().narrow(2, 8, H),
        stored.view(prefix + "patches").narrow(2, 8, H),
        1e-6);
    near(sample.inputs.at("time").whole(), stored.view(prefix + "time"), 1e-9);
    near(sample.inputs.at("fps").whole(), stored.view(prefix + "fps"), 1e-9);
    // back from channels that stand last, with variances that nothing is wanted of
    const at::Tensor velocity = sample.inputs.at("velocity").whole();
    EXPECT_TRUE(at::equal(stdit3_clip_of(velocity, clip.sizes(), 2), 2 * clip));
    EXPECT_EQ(velocity.isnan().sum().item<std::int64_t>(), clip.numel());
    EXPECT_EQ(scored(sample, model), clip.numel());
  }
}

// What OpenFold's embeddings read of a residue, a letter and a pair.
TEST(Alignments, HaveOpenFoldsFeatures) {
  const File file("features.a3m");
  std::ofstream(file.path) << ">a\nARX\n>b\nAkk-W\n";
  const Sample sample = read_alignments(file.path, /*openfold=*/true).sample(0, 1, 0);
  const at::Tensor msa = sample.inputs.at("msa").whole();
  const at::Tensor pair = sample.inputs.at("pair").whole();
  ASSERT_EQ(msa.sizes(), at::IntArrayRef({2, 3, kTargetFeatures + kLetterFeatures}));
  ASSERT_EQ(pair.sizes(), at::IntArrayRef({3, 3, 2 * kTargetFeatures + kPlaceBins}));
  const auto ones = [](const at::Tensor& of) {
    std::vector<std::int64_t> places;
    for (std::int64_t i = 0; i < of.size(0); ++i) {
      if (of[i].item<double>() == 1) {
        places.push_back(i);
      }
    }
    return places;
  };
  const std::vector<std::int64_t> target = {1, 2, 21};  // A, R and X behind the break of a chain
  for (std::int64_t i = 0; i < 3; ++i) {
    for (std::int64_t row = 0; row < 2; ++row) {
      EXPECT_EQ(ones(msa[row][i].narrow(0, 0, 22)), std::vector{target[idx(i)]});
      const at::Tensor letter = msa[row][i].narrow(0, 22, 49);
      EXPECT_EQ(ones(letter.narrow(0, 0, 23)), ones(letter.narrow(0, 25, 23)));  // its own cluster
      EXPECT_EQ(ones(letter.narrow(0, 0, 23)).size(), 1U);
      const bool after_two = row == 1 && i == 1;
      EXPECT_EQ(letter[23].item<double>(), after_two ? 1 : 0);
      EXPECT_EQ(letter[24].item<double>(), letter[48].item<double>());
    }
    for (std::int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(
          ones(pair[i][j]), (std::vector{target[idx(i)], 22 + target[idx(j)], 44 + 32 + i - j}));
    }
  }
}

TEST(Alignments, WithOneMeaningAreRead) {
  const File plain("plain.a3m");
  std::ofstream(plain.path) << ">a\nACD\n>b\nA-W\n";
  const Alignment expected = read_alignment_file(plain.path).at(0);
  const auto same = [&](const char* name, const std::string& text) {
    const File file(name);
    std::ofstream(file.path, std::ios::binary) << text;
    const Alignment read = read_alignment_file(file.path).at(0);
    EXPECT_EQ(read.letters, expected.letters) << text;
    EXPECT_EQ(read.deletions, expected.deletions) << text;
  };
  same("a.a3m", "\xef\xbb\xbf>a\nACD\n>b\nA-W\n");
  same("a.a3m", "\n  \n>a\nACD\n\n>b\nA-W\n\n");
  same("a.a3m", "#a comment\r\n>a\r\nACD\r\n>b\r\nA-W\r\n");
  same("a.a3m", ">a\rACD\r>b\rA-W");
  same("a.a3m", ">a x\nAC\nD\n>a y\nA-\nW\n");  // hits of one sequence have its name
  same("a.sto", "\xef\xbb\xbf\n\n# STOCKHOLM 1.0\r\na ACD\r\nb A-W\r\n//\r\n");
  same("a.a3m", ">ss_pred PSIPRED\nCHH\n>ss_conf\n987\n> a\nACD\n>b\nA-W\n");  // of HH-suite
  same("a.sto", "# made by a program\n# STOCKHOLM 1.0\na ACD\nb A-W\n//\n");
  same("a.fasta", ">a\nacd\n>b\na-w\n");
  same("a.txt", ">a\nacd\n>b\na-w\n");    // of insertions alone no residue would be left
  same("a.txt", ">a\nACD\n>b\nA.w\n");    // rows are equally long with what is small
  same("a.fasta", ">a\nAcD\n>b\na-W\n");  // without it, too
}

// Small letters are insertions where the file is named A3M, or where rows are equally long without
// them.
TEST(Alignments, HaveInsertions) {
  const auto deletions = [](const char* name, const std::string& text) {
    const File file(name);
    std::ofstream(file.path) << text;
    return read_alignment_file(file.path).at(0).deletions.at(1);
  };
  EXPECT_THAT(deletions("b.a3m", ">a\nACD\n>b\nA-kkW\n"), ElementsAre(0, 0, 2));
  EXPECT_THAT(deletions("b.txt", ">a\nACD\n>b\nA-kkW\n"), ElementsAre(0, 0, 2));
  EXPECT_THAT(deletions("b.fasta", ">a\nA..CD\n>b\nAkkCD\n"), ElementsAre(0, 2, 0));
  EXPECT_THAT(deletions("b.a3m", ">a\nACkD\n>b\nAkCD\n"), ElementsAre(0, 1, 0));
  EXPECT_THAT(deletions("b.fasta", ">a\nACkD\n>b\nAkCD\n"), ElementsAre(0, 0, 0, 0));
  const File file("b.txt");
  std::ofstream(file.path) << ">a\nACkD\n>b\nAkCD\n";
  expect_refused(
      [&] { read_alignment_file(file.path); }, {":1: ", "lower-case letters", ".a3m or .fasta"});
}

// Pairs of residues grow with their square.
TEST(Alignments, AreRefusedWhereThereIsNoMemory) {
  const File file("long.sto");
  constexpr std::int64_t kResidues = 400000;
  std::string row;
  while (std::ssize(row) < kResidues) {
    row += "ACDEFGHIKL";
  }
  std::ofstream(file.path) << "# STOCKHOLM 1.0\na ACD\n//\n# STOCKHOLM 1.0\nb " << row << "\n//\n";
  const std::vector<std::string> what = {
      ":5: ", "1 sequences and 400000 residues", "64.6 TiB", "available", "at most"};
  expect_refused([&] { read_alignments(file.path); }, what);
  const AlignmentFile data(file.path.string(), {}, read_alignment_file(file.path));
  expect_refused([&] { (void)data.sample(1, 7, 0); }, what);
  EXPECT_EQ(data.sample(0, 7, 0).labels.size(), 3U);
}

// Some of the indices below `size`, in runs.
Piece some_of(std::int64_t size, std::mt19937& random) {
  Piece held;
  for (std::int64_t i = 0; i < size; ++i) {
    if (random() % 3 != 0) {
      continue;
    }
    if (!held.empty() && held.back().end == i) {
      ++held.back().end;
    } else {
      held.push_back({i, i + 1});
    }
  }
  return held;
}

at::Tensor indices(const Piece& held) {
  std::vector<std::int64_t> all;
  for_each_index(held, [&](std::int64_t i) { all.push_back(i); });
  return at::tensor(all, at::kLong);
}

// What a rank makes of an input is that part of the whole, to the bit, in any type and order.
void expect_cut(const Sample& sample) {
  std::mt19937 random(5);
  for (const auto& [name, input] : sample.inputs) {
    SCOPED_TRACE(name);
    const at::Tensor whole = input.whole();
    EXPECT_EQ(whole.sizes(), input.sizes());
    for (int draw = 0; draw < 5; ++draw) {
      std::vector<Piece> held;
      at::Tensor wanted = whole;
      for (std::int64_t dim = 0; dim < whole.dim(); ++dim) {
        held.push_back(some_of(whole.size(dim), random));
        wanted = wanted.index_select(dim, indices(held.back()));
      }
      const at::ScalarType type = draw % 2 == 0 ? at::kDouble : at::kBFloat16;
      const at::Tensor piece = at::empty_like(wanted.transpose(0, -1).contiguous(), type).fill_(9);
      input.copy(held, piece.transpose(0, -1));
      EXPECT_TRUE(at::equal(piece.transpose(0, -1).nan_to_num(77), wanted.to(type).nan_to_num(77)));
    }
  }
}

TEST(Inputs, AreMadeOfWhatARankHolds) {
  const File frames("cut.safetensors");
  test::write_tensors(frames.path, {{"latents", at::randn({2, 4, 3, 4, 6})}});
  expect_cut(read_frames(frames.path, kShape).sample(1, 7, 1));
  const File latents("cut3.safetensors");
  test::write_tensors(
      latents.path,
      {{"latents", at::randn({2, 4, 5, 4, 6})}, {"text", at::randn({2, 3, 8}).to(at::kHalf)}});
  StditShape stdit3 = kShape;
  stdit3.stdit3 = stdit3.pred_sigma = true;
  stdit3.caption_channels = 8;
  expect_cut(read_frames(latents.path, stdit3).sample(1, 7, 1));
  const File letters("cut.fasta");
  std::ofstream(letters.path) << ">a\nMKVLAT-GH\n>b\nMKaVIAT-GH\n>c\n--VIATWGH\n";
  expect_cut(read_alignments(letters.path).sample(0, 7, 0));
  expect_cut(read_alignments(letters.path, /*openfold=*/true).sample(0, 7, 0));
}

std::int64_t most_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      std::int64_t kib = 0;
      status >> kib;
      return kib << 10;
    }
  }
  return 0;
}

// A rank that holds an eighth of an input needs no memory for the rest of it.
TEST(Inputs, TakeNoMemoryForWhatOthersHold) {
  const File file("long.fasta");
  {
    std::ofstream letters(file.path);
    for (int i = 0; i < 4; ++i) {
      letters << ">" << i << "\n";
      for (int j = 0; j < 700; ++j) {
        letters << "ACDEFGHIKLMNPQRSTVWY"[(i * i + 3 * j) % 20];
      }
      letters << "\n";
    }
  }
  const AlignmentFile data = read_alignments(file.path);
  if (!(std::ofstream("/proc/self/clear_refs") << 5).flush()) {
    GTEST_SKIP() << "/proc/self/clear_refs cannot be written";  // resets what was most
  }
  const std::int64_t before = most_resident_bytes();
  const Sample sample = data.sample(0, 7, 0);
  const SampleInput& pair = sample.inputs.at("pair");
  const at::Tensor share = at::empty({88, 700, pair.sizes()[2]}, at::kFloat);
  pair.copy(std::vector<Piece>{{{88, 176}}, {{0, 700}}, {{0, pair.sizes()[2]}}}, share);
  const std::int64_t whole = 8 * pair.numel();
  EXPECT_LT(most_resident_bytes() - before, whole / 8);  // the share is a sixteenth of that
  EXPECT_EQ(share.sum().item<double>(), 3.0 * 88 * 700);
}

// What is said of the largest sample that fits is right.
TEST(SampleMemory, NamesTheLargestThatFits) {
  const auto refused = [](std::size_t s, std::size_t r, std::int64_t room) {
    const Alignment alignment{
        .names = {}, .letters = {s, std::vector<std::int32_t>(r)}, .deletions = {}};
    return test::refusal<std::runtime_error>([&] { expect_room("here", alignment, room); });
  };
  const auto room =
      static_cast<std::int64_t>(alignment_sample_bytes({.sequences = 4, .residues = 100}));
  EXPECT_EQ(refused(4, 100, room), "");
  EXPECT_THAT(refused(4, 200, room), HasSubstr("at most 100 residues"));
  EXPECT_THAT(refused(9, 100, room), HasSubstr("at most 4 sequences"));
  EXPECT_THAT(refused(4, 101, room), HasSubstr("at most "));
  const auto of_clip =
      static_cast<std::int64_t>(clip_sample_bytes({4, 7, 8, 8}, StditShape{.patch = 2}));
  EXPECT_NO_THROW(expect_room("here", {4, 7, 8, 8}, StditShape{.patch = 2}, of_clip));
  EXPECT_THAT(
      test::refusal<std::runtime_error>(
          [&] { expect_room("here", {4, 20, 8, 8}, StditShape{.patch = 2}, of_clip); }),
      HasSubstr("at most 7 frames"));
}

TEST(SyntheticSamples, AreRefusedWhereThereIsNoMemory) {
  const Model model = evoformer_model({.blocks = 1});
  const DimSizes dims = {{"sequences", 2}, {"residues", 400000}, {"i", 400000}, {"j", 400000}};
  expect_refused(
      [&] { (void)synthetic_samples(model, dims, 1); },
      {"residues 400000", "available", "smaller"});
}

}  // namespace
}  // namespace paradyse
