// The CUDA kernels' bodies, compiled for the host (block.h), beside our loops and ATen in float64.
// Each launch runs twice, the second time with blocks and threads in the opposite order: a barrier
// that is missing, or a sum in the order of arrival, shows there.
#define PARADYSE_KERNELS on_host
#include <cmath>
#include <functional>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "src/run/cuda/adamw.cu"
#include "src/run/cuda/norm.cu"
#include "src/run/cuda/norm_adjoint.cu"
#include "src/run/cuda/norm_parts.cu"
#include "src/run/cuda/rope.cu"
#include "src/run/cuda/softmax_loss.cu"
#include "src/run/cuda/swiglu.cu"
#include "src/run/kernels/cuda/launches.h"
#include "src/run/kernels/kernels.h"

namespace paradyse::on_host {

Stream of_tensors::stream_of(const at::Tensor&) { return nullptr; }
void of_tensors::check_launches() {}

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Element {
  Type type;
  at::ScalarType torch;
  double rounding;  // largest relative error of a number rounded to it
};
const Element kElements[] = {
    {Type::float64, at::kDouble, 1e-13},
    {Type::float32, at::kFloat, 2e-6},
    {Type::bfloat16, at::kBFloat16, 0x1p-8 + 2e-6},
    {Type::float16, at::kHalf, 0x1p-11 + 2e-6}};
const Element& sum_of(const Element& element) {
  return kElements[element.type == Type::float64 ? 0 : 1];
}

at::Tensor random(std::vector<std::int64_t> sizes, std::uint64_t seed, at::ScalarType type) {
  at::set_num_threads(1);  // as ranks have it
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

// How rows lie in memory: one after the other, within a wider matrix, or so that none can be read
// 16 bytes at a time.
enum class Layout { dense, wide, odd };
const Layout kLayouts[] = {Layout::dense, Layout::wide, Layout::odd};

at::Tensor lay(const at::Tensor& numbers, Layout layout) {
  const std::int64_t rows = numbers.size(0);
  const std::int64_t cols = numbers.size(1);
  const std::int64_t before = layout == Layout::dense ? 0 : layout == Layout::wide ? 16 : 1;
  const at::Tensor room = at::full({rows, cols + 2 * before}, 7, numbers.options());
  return room.narrow(1, before, cols).copy_(numbers);
}
// Whether what lies around the rows is as `lay` left it.
bool surroundings_intact(const at::Tensor& rows) {
  if (rows.numel() == 0 || rows.storage_offset() == 0) {
    return true;
  }
  const std::int64_t before = rows.storage_offset();
  const at::Tensor room = rows.as_strided({rows.size(0), rows.stride(0)}, {rows.stride(0), 1}, 0);
  return (room.narrow(1, 0, before) == 7).all().item<bool>() &&
         (room.narrow(1, before + rows.size(1), before) == 7).all().item<bool>();
}

ConstRows in(const at::Tensor& rows) { return {rows.const_data_ptr(), rows.stride(0)}; }
Rows out(const at::Tensor& rows) { return {rows.mutable_data_ptr(), rows.stride(0)}; }

// Numbers of type `element` that are to be `expected`, float64: each within one rounding of it, but
// for `slack` times the largest and 1, which is what sums and differences may lose.
void expect_near(
    const at::Tensor& numbers,
    const at::Tensor& expected,
    const Element& element,
    double slack,
    const std::string& what) {
  ASSERT_EQ(numbers.sizes(), expected.sizes()) << what;
  if (numbers.numel() == 0) {
    return;
  }
  const at::Tensor made = numbers.to(at::kDouble);
  const at::Tensor infinite = expected.to(element.torch).to(at::kDouble).isinf();
  const at::Tensor wanted = expected.masked_fill(infinite, 0).abs();
  const at::Tensor room = wanted * element.rounding + (wanted.max() + 1) * slack;
  const at::Tensor fits =
      (made - expected)
          .abs()
          .le(room)
          .logical_or(infinite.logical_and(made == expected.to(element.torch).to(at::kDouble)));
  if (!fits.all().item<bool>()) {
    const std::int64_t i = fits.flatten().to(at::kInt).argmin().item<std::int64_t>();
    ADD_FAILURE() << what << ", " << c10::toString(element.torch) << ", number " << i << " of "
                  << numbers.sizes() << ": " << made.flatten()[i].item<double>() << ", expected "
                  << expected.flatten()[i].item<double>();
  }
}
double slack_of(const Element& element) { return element.type == Type::float64 ? 1e-13 : 2e-6; }

// Runs body(tensors) on two copies, which must come out bit by bit the same; gives one.
std::vector<at::Tensor> run(
    const std::vector<at::Tensor>& tensors,
    const std::function<void(const std::vector<at::Tensor>& own)>& body,
    const std::string& what) {
  const auto copies = [&] {
    std::vector<at::Tensor> own;
    for (const at::Tensor& tensor : tensors) {
      const at::Tensor room = at::empty(
          {static_cast<std::int64_t>(tensor.storage().nbytes()) / tensor.element_size()},
          tensor.options());
      room.copy_(tensor.as_strided(room.sizes(), {1}, 0));
      own.push_back(room.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()));
    }
    return own;
  };
  const std::vector<at::Tensor> first = copies();
  const std::vector<at::Tensor> second = copies();
  body(first);
  backwards = true;
  body(second);
  backwards = false;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const bool same = (first[i] == second[i])
                          .logical_or(first[i].isnan().logical_and(second[i].isnan()))
                          .all()
                          .item<bool>();
    EXPECT_TRUE(same) << what << ": tensor " << i << " depends on the order of threads or blocks";
    EXPECT_TRUE(surroundings_intact(first[i])) << what << ": written beside tensor " << i;
  }
  return first;
}

struct Size {
  std::int64_t rows;
  std::int64_t width;
};
const Size kSizes[] = {
    {0, 8},
    {1, 1},
    {5, 3},
    {9, 7},
    {300, 8},
    {7, 33},
    {33, 64},
    {5, 127},
    {40, 128},
    {3, 255},
    {3, 1000},
    {3, 2047},
    {5, 2048},
    {3, 5632},
    {2, 8191},
    {3, 8192},
    {700, 24},
    {70000, 8}};

// --- norms ---------------------------------------------------------------------------------------

struct NormCase {
  const Element& element;
  Size size;
  std::int64_t runs;
  Layout layout;
  bool layer;
  bool flag = false;  // of the adjoint: accumulation
};

std::string name(const NormCase& c) {
  return (c.layer ? "LayerNorm of " : "RMSNorm of ") + std::to_string(c.size.rows) + " rows, " +
         std::to_string(c.runs) + " x " + std::to_string(c.size.width) + ", layout " +
         std::to_string(static_cast<int>(c.layout)) + (c.flag ? ", flag" : "");
}

Norm norm_of(const NormCase& c, const at::Tensor& w, const at::Tensor& b) {
  return {
      .type = c.element.type,
      .rows = c.size.rows,
      .runs = c.runs,
      .width = c.size.width,
      .eps = 1e-5,
      .w = w.const_data_ptr(),
      .b = c.layer ? b.const_data_ptr() : nullptr,
      .layer = c.layer};
}

// LayerNorm by our loops has no runs: rows of runs become rows.
at::Tensor as_runs(const at::Tensor& x, std::int64_t width) {
  return x.to(at::kDouble).contiguous().view({-1, width});
}

void expect_norm(const NormCase& c) {
  const auto& [t, H] = c.size;
  const at::Tensor x = random({t, c.runs * H}, 1, c.element.torch) + 0.5;
  const at::Tensor w = random({H}, 3, c.element.torch);
  const at::Tensor b = random({H}, 4, c.element.torch);
  const at::Tensor room = at::full_like(x, kNan);
  const auto made = run(
      {lay(x, c.layout), lay(room, c.layout)},
      [&](const auto& own) { norm(norm_of(c, w, b), in(own[0]), out(own[1]), nullptr); },
      name(c));
  EXPECT_TRUE(at::equal(made[0], x)) << name(c);
  const at::Tensor from = as_runs(x, H);
  const at::Tensor expected = at::empty_like(from);
  if (c.layer) {
    cpu_kernels().layer_norm(from, w.to(at::kDouble), b.to(at::kDouble), 1e-5, expected);
  } else {
    cpu_kernels().rms_norm(from, w.to(at::kDouble), 1e-5, expected);
  }
  expect_near(made[1], expected.view_as(x), c.element, slack_of(c.element), name(c));
}

void expect_norm_adjoint(const NormCase& c) {
  const auto& [t, H] = c.size;
  const at::ScalarType sums = sum_of(c.element).torch;
  const at::Tensor x = random({t, c.runs * H}, 1, c.element.torch) + 0.5;
  const at::Tensor g = random({t, c.runs * H}, 2, c.element.torch);
  const at::Tensor w = random({H}, 3, c.element.torch);
  const at::Tensor b = random({H}, 4, c.element.torch);
  const at::Tensor before =
      c.flag ? random({t, c.runs * H}, 5, c.element.torch) : at::full_like(x, kNan);
  const at::Tensor grad_w = random({H}, 6, sums);
  const at::Tensor grad_b = random({H}, 7, sums);
  const auto made = run(
      {lay(x, c.layout), lay(g, c.layout), lay(before, c.layout), grad_w, grad_b},
      [&](const auto& own) {
        const Norm of = norm_of(c, w, b);
        const auto bytes = static_cast<std::int64_t>(norm_scratch_bytes(of));
        const at::Tensor scratch = at::full({bytes + 64}, 0xFF, at::kByte);  // NaN
        norm_adjoint(
            of,
            {.x = in(own[0]),
             .grad_y = in(own[1]),
             .grad_x = out(own[2]),
             .accumulate = c.flag,
             .grad_w = own[3].mutable_data_ptr(),
             .grad_b = own[4].mutable_data_ptr(),
             .scratch = scratch.mutable_data_ptr()},
            nullptr);
        EXPECT_TRUE((scratch.narrow(0, bytes, 64) == 0xFF).all().template item<bool>())
            << name(c) << ": more scratch than said";
      },
      name(c));
  const at::Tensor from = as_runs(x, H);
  const kernels::NormGradients expected{
      .y = as_runs(g, H),
      .x = as_runs(before, H).clone(),
      .accumulate = c.flag,
      .w = grad_w.to(at::kDouble, false, true),
      .b = grad_b.to(at::kDouble, false, true)};
  if (c.layer) {
    cpu_kernels().layer_norm_adjoint(from, w.to(at::kDouble), 1e-5, expected);
  } else {
    cpu_kernels().rms_norm_adjoint(from, w.to(at::kDouble), 1e-5, expected);
  }
  const double slack = slack_of(c.element);
  expect_near(made[2], expected.x.view_as(x), c.element, slack, name(c) + ", x's gradient");
  const double by_rows = std::sqrt(static_cast<double>(t * c.runs + 1));
  expect_near(made[3], expected.w, sum_of(c.element), slack * by_rows, name(c) + ", w's gradient");
  expect_near(made[4], expected.b, sum_of(c.element), slack * by_rows, name(c) + ", b's gradient");
}

void for_norm_cases(const std::function<void(const NormCase&)>& body) {
  for (const Element& element : kElements) {
    for (const Size& size : kSizes) {
      for (const Layout layout : kLayouts) {
        for (const bool layer : {false, true}) {
          // a flag each for half of the cases that are many
          for (const bool flag : {false, true}) {
            if (size.rows == 70000 && (flag != layer || layout == Layout::wide)) {
              continue;
            }
            body(
                {element,
                 size,
                 size.rows % 2 == 1 && size.width < 1000 ? 3 : 1,
                 layout,
                 layer,
                 flag});
          }
        }
      }
    }
  }
}

TEST(CudaKernels, Norms) {
  for_norm_cases([](const NormCase& c) {
    if (!c.flag || c.size.rows == 70000) {
      expect_norm(c);
    }
  });
}
TEST(CudaKernels, AdjointsOfNorms) { for_norm_cases(expect_norm_adjoint); }

// A LayerNorm without a bias is one whose bias is 0, but for the gradient that there is not.
TEST(CudaKernels, LayerNormsWithoutABias) {
  for (const Element& element : kElements) {
    for (const std::int64_t H : {8, 27, 2048}) {
      const at::Tensor x = random({7, H}, 1, element.torch) + 0.5;
      const at::Tensor g = random({7, H}, 2, element.torch);
      const at::Tensor w = random({H}, 3, element.torch);
      const at::Tensor zero = at::zeros_like(w);
      std::vector<std::vector<at::Tensor>> both;
      for (const bool biased : {true, false}) {
        Norm of = norm_of({element, {7, H}, 1, kLayouts[0], true}, w, zero);
        of.b = biased ? of.b : nullptr;
        const at::Tensor y = at::full_like(x, kNan);
        const at::Tensor grad_x = at::full_like(x, kNan);
        const at::Tensor grad_w = at::zeros({H}, sum_of(element).torch);
        const at::Tensor grad_b = at::zeros_like(grad_w);
        const at::Tensor scratch =
            at::empty({static_cast<std::int64_t>(norm_scratch_bytes(of))}, at::kByte);
        norm(of, in(x), out(y), nullptr);
        norm_adjoint(
            of,
            {.x = in(x),
             .grad_y = in(g),
             .grad_x = out(grad_x),
             .grad_w = grad_w.mutable_data_ptr(),
             .grad_b = biased ? grad_b.mutable_data_ptr() : nullptr,
             .scratch = scratch.mutable_data_ptr()},
            nullptr);
        both.push_back({y, grad_x, grad_w});
      }
      for (std::size_t i = 0; i < both[0].size(); ++i) {
        EXPECT_TRUE(at::equal(both[0][i], both[1][i])) << H << ", result " << i;
      }
    }
  }
}

// A tensor's bits do not tell where it lies.
TEST(CudaKernels, NormsDoNotDependOnTheLayout) {
  for (const Element& element : kElements) {
    for (const std::int64_t H : {8, 24, 2048, 5632}) {
      const at::Tensor x = random({5, H}, 1, element.torch);
      const at::Tensor w = random({H}, 2, element.torch);
      std::vector<at::Tensor> all;
      for (const Layout layout : kLayouts) {
        const at::Tensor from = lay(x, layout);
        const at::Tensor to = lay(at::zeros_like(x), layout);
        const at::Tensor scratch = at::empty({1 << 22}, at::kByte);
        const at::Tensor grad_w = at::zeros({H}, sum_of(element).torch);
        const Norm of = norm_of({element, {5, H}, 1, layout, false, false}, w, w);
        norm(of, {in(from)}, out(to), nullptr);
        all.push_back(to.clone());
        norm_adjoint(
            of,
            {.x = in(from),
             .grad_y = in(to),
             .grad_x = out(to),
             .grad_w = grad_w.mutable_data_ptr(),
             .scratch = scratch.mutable_data_ptr()},
            nullptr);
        all.push_back(to.clone());
        all.push_back(grad_w);
      }
      for (std::size_t i = 3; i < all.size(); ++i) {
        EXPECT_TRUE(at::equal(all[i], all[i % 3])) << H << ", result " << i % 3;
      }
    }
  }
}

// --- RoPE and SwiGLU -----------------------------------------------------------------------------

TEST(CudaKernels, Rotations) {
  for (const Element& element : kElements) {
    for (const std::int64_t half : {1, 3, 8, 64, 100}) {
      for (const std::int64_t t : {0, 1, 60}) {
        for (const std::int64_t heads : {0, 1, 5}) {
          for (const Layout layout : kLayouts) {
            std::vector<std::int64_t> positions;
            for (std::int64_t i = 0; i < t; ++i) {
              positions.push_back((7 * i) % 11);
            }
            const at::Tensor x = random({t, 12 * half}, 1, element.torch);  // 6 heads
            const at::Tensor cosines = random({11, half}, 2, sum_of(element).torch);
            const at::Tensor sines = random({11, half}, 3, sum_of(element).torch);
            for (const bool inverse : {false, true}) {
              const std::string what = "rotation of " + std::to_string(heads) + " x " +
                                       std::to_string(2 * half) + ", rows " + std::to_string(t);
              const auto made = run(
                  {lay(x, layout)},
                  [&](const auto& own) {
                    rotate(
                        {.type = element.type,
                         .rows = t,
                         .heads = heads,
                         .head_dim = 2 * half,
                         .cosines = cosines.const_data_ptr(),
                         .sines = sines.const_data_ptr(),
                         .positions = positions.data(),
                         .inverse = inverse},
                        out(own[0]),
                        nullptr);
                  },
                  what);
              const at::Tensor expected = x.to(at::kDouble, false, true);
              cpu_kernels().rotate(
                  expected,
                  {heads,
                   2 * half,
                   cosines.to(at::kDouble),
                   sines.to(at::kDouble),
                   at::tensor(positions, at::kLong),
                   inverse});
              expect_near(made[0], expected, element, slack_of(element) / 10, what);
            }
          }
        }
      }
    }
  }
}

// Far from zero, too, where exponentials would overflow.
TEST(CudaKernels, Swiglu) {
  for (const Element& element : kElements) {
    for (const auto& [t, F] : kSizes) {
      for (const Layout layout : kLayouts) {
        for (const double height : {1.0, 100.0}) {
          if (t == 70000 && (height > 1 || layout == Layout::wide)) {
            continue;
          }
          const std::string what = "SwiGLU " + std::to_string(t) + " x " + std::to_string(F) +
                                   ", height " + std::to_string(height);
          const at::Tensor h = random({t, 2 * F}, 1, element.torch) * height;
          const at::Tensor grad_a = random({t, F}, 2, element.torch);
          const auto made = run(
              {lay(h, layout),
               lay(grad_a, layout),
               lay(at::full_like(grad_a, kNan), layout),
               lay(at::full_like(h, kNan), layout)},
              [&](const auto& own) {
                const Swiglu of{.type = element.type, .rows = t, .F = F, .h = in(own[0])};
                swiglu(of, out(own[2]), nullptr);
                swiglu_adjoint(of, in(own[1]), out(own[3]), nullptr);
                swiglu_adjoint(of, in(own[1]), out(own[0]), nullptr);  // in place
              },
              what);
          const at::Tensor wide_h = h.to(at::kDouble);
          const at::Tensor a = at::empty({t, F}, at::kDouble);
          const at::Tensor grad_h = at::empty({t, 2 * F}, at::kDouble);
          cpu_kernels().swiglu(wide_h, a);
          cpu_kernels().swiglu_adjoint(wide_h, grad_a.to(at::kDouble), grad_h);
          expect_near(made[2], a, element, slack_of(element), what);
          expect_near(made[3], grad_h, element, slack_of(element), what + ", adjoint");
          EXPECT_TRUE(at::equal(made[3], made[0])) << what << ", in place";
        }
      }
    }
  }
}

// --- softmax and loss ----------------------------------------------------------------------------

struct LossCase {
  const Element& element;  // of the gradient
  std::int64_t rows;
  std::int64_t ids;
  int tiles;
  Layout layout;
  double height;
};

void expect_loss(const LossCase& c) {
  const std::string what = std::to_string(c.rows) + " rows of " + std::to_string(c.ids) +
                           " logits in " + std::to_string(c.tiles) + " tiles";
  const Element& sums = sum_of(c.element);
  const at::Tensor logits = random({c.rows, c.ids}, 1, sums.torch) * c.height;
  if (c.ids > 8) {
    logits.narrow(1, 2, 3).fill_(-std::numeric_limits<double>::infinity());  // ids that are masked
  }
  const at::Tensor labels = at::empty({c.rows}, at::kLong);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    const std::int64_t label = r * 7919 % c.ids;
    labels[r] = r % 5 == 3 ? -1 - r : label >= 2 && label < 5 && c.ids > 8 ? 0 : label;
  }
  const double scale = 1.0 / 3;
  const at::Tensor nan = at::full({c.rows}, kNan, at::kDouble);
  const at::Tensor room = at::full({c.rows, c.ids}, kNan, c.element.torch);
  const bool in_place = c.element.torch == sums.torch;
  const auto made = run(
      {lay(logits, c.layout), lay(room, c.layout), nan, nan, nan},
      [&](const auto& own) {
        const SoftmaxStatistics statistics{
            own[2].template mutable_data_ptr<double>(),
            own[3].template mutable_data_ptr<double>(),
            own[4].template mutable_data_ptr<double>()};
        const auto for_tiles = [&](auto body) {
          for (int i = 0; i < c.tiles; ++i) {
            const std::int64_t first = c.ids * i / c.tiles;
            const std::int64_t count = c.ids * (i + 1) / c.tiles - first;
            const at::Tensor mine = own[0].narrow(1, first, count);
            const at::Tensor to = own[in_place ? 0 : 1].narrow(1, first, count);
            const LogitsTile tile{
                .type = sums.type,
                .rows = c.rows,
                .ids = count,
                .first_id = first,
                .logits = in(mine),
                .labels = labels.const_data_ptr<std::int64_t>()};
            body(tile, LogitsGradient{c.element.type, out(to), scale}, i);
          }
        };
        if (c.tiles == 1) {
          for_tiles([&](const auto& tile, const auto& gradient, int) {
            softmax_loss(tile, statistics, gradient, nullptr);
          });
        } else {
          for_tiles([&](const auto& tile, const auto&, int i) {
            softmax_update(tile, statistics, i == 0, nullptr);
          });
          for_tiles([&](const auto& tile, const auto& gradient, int) {
            softmax_gradient(tile, statistics, gradient, nullptr);
          });
        }
      },
      what);
  const at::Tensor logs = logits.to(at::kDouble).log_softmax(1);
  const at::Tensor counted = labels >= 0;
  const at::Tensor column = labels.clamp_min(0).unsqueeze(1);
  const at::Tensor losses =
      logs.gather(1, column).squeeze(1).neg().masked_fill(counted.logical_not(), 0);
  const at::Tensor gradients =
      (logs.exp() - at::zeros_like(logs).scatter(1, column, 1)) * counted.unsqueeze(1) * scale;
  // an exponential of a logit of 100 in float32 is off by 4e-6
  const double slack = slack_of(c.element) * std::max(1.0, c.height / 10);
  const at::Tensor made_losses = made[2] + made[3].log() - made[4];
  expect_near(
      made_losses.masked_fill(counted.logical_not(), 0),
      losses,
      kElements[0],
      slack,
      what + ", loss");
  expect_near(
      made[in_place ? 0 : 1],
      gradients,
      {c.element.type,
       c.element.torch,
       c.element.rounding * std::max(1.0, in_place ? c.height : 1)},
      slack,
      what + ", gradient");
}

TEST(CudaKernels, SoftmaxAndLoss) {
  for (const Element& element : kElements) {
    for (const std::int64_t ids : {1, 2, 7, 8, 33, 300, 1001, 4096, 32000, 50257}) {
      for (const Layout layout : kLayouts) {
        const bool many = ids > 5000;
        expect_loss({element, many ? 4 : 21, ids, 1, layout, 3.0});
        expect_loss({element, many ? 4 : 21, ids, ids < 3 ? 1 : 3, layout, 3.0});
      }
    }
    expect_loss({element, 0, 50, 1, Layout::dense, 1.0});
    expect_loss({element, 70000, 9, 1, Layout::dense, 1.0});
    expect_loss({element, 70000, 8, 2, Layout::odd, 1.0});
    expect_loss({element, 30, 700, 1, Layout::dense, 1000.0});
    expect_loss({element, 30, 700, 4, Layout::dense, 1000.0});
  }
}

// --- AdamW ---------------------------------------------------------------------------------------

constexpr double kRate = 3e-3;

struct Trained {
  at::Tensor weight;
  at::Tensor gradient;
  at::Tensor mean;
  at::Tensor variance;
  at::Tensor narrow;
  double decay = 0;
};

std::vector<Trained> some_tensors(const Element& element) {
  const at::ScalarType sums = sum_of(element).torch;
  std::vector<Trained> all;
  for (std::uint64_t i = 0; i < 70; ++i) {  // more than a launch takes
    const std::int64_t sizes[] = {0, 1, 3, 8, 130, 4095, 4096, 4097, 20000};
    const std::int64_t n = sizes[i % 9];
    all.push_back(
        {random({n}, i, sums),
         random({n}, 100 + i, sums),
         at::zeros({n}, sums),
         at::zeros({n}, sums),
         at::full({n}, kNan, element.torch),
         i % 2 == 0 ? 0.1 : 0.0});
  }
  return all;
}

void step_ours(
    const std::vector<Trained>& all,
    const Element& element,
    std::int64_t step,
    const double* factor) {
  std::vector<AdamWTensor> table;
  for (const Trained& one : all) {
    table.push_back(
        {.master = one.weight.mutable_data_ptr(),
         .gradient = one.gradient.mutable_data_ptr(),
         .mean = one.mean.mutable_data_ptr(),
         .variance = one.variance.mutable_data_ptr(),
         .narrow = element.type == sum_of(element).type ? nullptr : one.narrow.mutable_data_ptr(),
         .size = one.weight.numel(),
         .weight_decay = one.decay});
  }
  adamw(
      {.type = element.type,
       .learning_rate = kRate,
       .beta1 = 0.9,
       .beta2 = 0.999,
       .eps = 1e-8,
       .step = step,
       .factor = factor},
      table.data(),
      table.size(),
      nullptr);
}

TEST(CudaKernels, AdamWTakesTheStepsOfTorch) {
  for (const Element& element : kElements) {
    const double factor = 0.37;
    const std::vector<Trained> ours = some_tensors(element);
    std::vector<Trained> theirs;
    for (const Trained& one : ours) {
      const auto copy = [](const at::Tensor& x) { return x.to(at::kDouble, false, true); };
      theirs.push_back(
          {copy(one.weight),
           copy(one.gradient),
           copy(one.mean),
           copy(one.variance),
           {},
           one.decay});
    }
    for (int step = 1; step <= 3; ++step) {
      const double of_step = step == 2 ? 1 : factor;
      step_ours(ours, element, step, &of_step);
      for (const Trained& one : theirs) {
        const at::Tensor count = at::full({}, step, at::kFloat);
        at::_fused_adamw_(
            {one.weight},
            {one.gradient * of_step},
            {one.mean},
            {one.variance},
            {},
            {count},
            kRate,
            0.9,
            0.999,
            one.decay,
            1e-8,
            false,
            false);
      }
    }
    const Element& sums = sum_of(element);
    const double slack = slack_of(sums) / 10;  // of weights near 1 that come near 0
    for (std::size_t i = 0; i < ours.size(); ++i) {
      const std::string what = "tensor " + std::to_string(i);
      expect_near(ours[i].weight, theirs[i].weight, sums, slack, what);
      expect_near(ours[i].mean, theirs[i].mean, sums, slack, what + ", mean");
      expect_near(ours[i].variance, theirs[i].variance, sums, slack / 1000, what + ", variance");
      if (element.type != sums.type) {
        EXPECT_TRUE(at::equal(ours[i].narrow, ours[i].weight.to(element.torch))) << what;
      }
    }
  }
}

TEST(CudaKernels, AdamWLeavesAllWhereGradientsOverflowed) {
  for (const Element& element : kElements) {
    for (const double factor : {0.0, -1.0, kNan, HUGE_VAL, -HUGE_VAL}) {
      const std::vector<Trained> before = some_tensors(element);
      const std::vector<Trained> after = some_tensors(element);
      step_ours(after, element, 1, &factor);
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(at::equal(after[i].weight, before[i].weight)) << factor;
        EXPECT_TRUE(at::equal(after[i].variance, before[i].variance)) << factor;
        EXPECT_TRUE(after[i].narrow.isnan().all().item<bool>()) << factor;
      }
    }
  }
}

// --- the table -----------------------------------------------------------------------------------

// What the table of CUDA hands to launches, on CPU tensors beside the table of CPUs.
void expect_same_by_table(
    const Element& element,
    const std::vector<at::Tensor>& tensors,
    const std::function<void(const Kernels& kernels, const std::vector<at::Tensor>& own)>& body,
    const std::string& what) {
  const Kernels ours = of_tensors::with_our_launches(aten_kernels());
  const auto copies = [&] {
    std::vector<at::Tensor> own;
    for (const at::Tensor& tensor : tensors) {
      own.push_back(tensor.dim() == 2 ? lay(tensor, Layout::odd) : tensor.clone());
    }
    return own;
  };
  const auto made = copies();
  const auto expected = copies();
  body(ours, made);
  body(cpu_kernels(), expected);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Element& of = tensors[i].scalar_type() == element.torch ? element : sum_of(element);
    const Element twice{of.type, of.torch, 2 * element.rounding};  // both are rounded
    expect_near(
        made[i].to(at::kDouble),
        expected[i].to(at::kDouble),
        twice,
        slack_of(element),
        what + ", tensor " + std::to_string(i));
  }
}

TEST(CudaKernels, TheTableHandsTensorsToLaunches) {
  for (const Element& element : kElements) {
    const at::ScalarType sums = sum_of(element).torch;
    const at::Tensor x = random({9, 60}, 1, element.torch);
    const at::Tensor y = random({9, 60}, 2, element.torch);
    const at::Tensor g = random({9, 60}, 3, element.torch);
    for (const std::int64_t H : {20, 60}) {
      const at::Tensor w = random({H}, 4, element.torch);
      const at::Tensor b = random({H}, 5, element.torch);
      const std::vector<at::Tensor> tensors = {x, y, g, random({H}, 6, sums), random({H}, 7, sums)};
      for (const bool accumulate : {false, true}) {
        const auto gradients = [&](const auto& own) {
          return kernels::NormGradients{own[1], own[2], accumulate, own[3], own[4]};
        };
        expect_same_by_table(
            element,
            tensors,
            [&](const Kernels& kernels, const auto& own) {
              kernels.rms_norm_adjoint(own[0], w, 1e-5, gradients(own));
              kernels.rms_norm(own[0], w, 1e-5, own[1]);
            },
            "RMSNorm");
        if (H == 60) {
          expect_same_by_table(
              element,
              tensors,
              [&](const Kernels& kernels, const auto& own) {
                kernels.layer_norm_adjoint(own[0], w, 1e-5, gradients(own));
                kernels.layer_norm(own[0], w, b, 1e-5, own[1]);
              },
              "LayerNorm");
        }
      }
    }
    const kernels::Rotation rotation{
        .heads = 2,
        .head_dim = 20,
        .cosines = random({4, 10}, 8, sums),
        .sines = random({4, 10}, 9, sums),
        .positions = at::arange(9, at::kLong) % 4};
    const at::Tensor a = random({9, 30}, 10, element.torch);
    expect_same_by_table(
        element,
        {x, y, g, a, a},
        [&](const Kernels& kernels, const auto& own) {
          kernels.rotate(own[2], rotation);
          kernels.swiglu(own[0], own[3]);
          kernels.swiglu_adjoint(own[0], own[4], own[1]);
        },
        "RoPE and SwiGLU");
  }
}

TEST(CudaKernels, TheTableHandsLossesAndWeightsToLaunches) {
  for (const Element& element : kElements) {
    const at::ScalarType sums = sum_of(element).torch;
    const at::Tensor labels = at::arange(9, at::kLong) * 5;  // of 44 ids in two tiles
    const auto statistics = [](const auto& own, double maximum) {
      own[2].fill_(maximum);
      own[3].fill_(0);
      own[4].fill_(0);
      return kernels::LossStatistics{own[2], own[3], own[4]};
    };
    const at::Tensor numbers = at::zeros({9}, at::kDouble);
    const std::vector<at::Tensor> tensors = {
        random({9, 44}, 1, sums), random({9, 44}, 2, element.torch), numbers, numbers, numbers};
    const auto loss = [&](const std::vector<at::Tensor>& own, const kernels::LossStatistics& of) {
      own[2].copy_(of.log_sum_exp() - own[4]);  // maxima and sums alone may differ
      own[3].zero_();
      own[0].zero_();  // what is left in a tile is not said
    };
    expect_same_by_table(
        element,
        tensors,
        [&](const Kernels& kernels, const auto& own) {
          const auto of = statistics(own, kNan);
          own[2].fill_(-INFINITY);
          kernels.loss_and_gradient({own[0].clone(), labels, 0}, of, 0.5, own[1]);
          loss(own, of);
        },
        "a tile");
    expect_same_by_table(
        element,
        tensors,
        [&](const Kernels& kernels, const auto& own) {
          const auto of = statistics(own, -INFINITY);
          for (const std::int64_t first : {0, 22}) {
            kernels.loss_statistics({own[0].narrow(1, first, 22).clone(), labels, first}, of);
          }
          for (const std::int64_t first : {0, 22}) {
            kernels.loss_gradient(
                {own[0].narrow(1, first, 22).clone(), labels, first},
                of,
                0.5,
                own[1].narrow(1, first, 22));
          }
          loss(own, of);
        },
        "two tiles");
    const std::vector<at::Tensor> trained = {
        random({7}, 1, sums),
        random({7}, 2, sums),
        at::zeros({7}, sums),
        at::zeros({7}, sums),
        at::zeros({7}, element.torch)};
    expect_same_by_table(
        element,
        trained,
        [&](const Kernels& kernels, const auto& own) {
          const at::Tensor weight = element.torch == sums ? own[0] : own[4];
          const at::Tensor gradient = own[1].clone();  // may be scaled in its place
          kernels.adamw(
              {0.1, {own[0]}, {gradient}, {own[2]}, {own[3]}, {weight}},
              {.learning_rate = kRate,
               .beta1 = 0.9,
               .beta2 = 0.999,
               .eps = 1e-8,
               .number = 3,
               .factor = at::full({}, 0.25, at::kDouble)});
        },
        "AdamW");
  }
}

// --- elements ------------------------------------------------------------------------------------

template <typename Ours, typename Theirs>
void expect_rounded_as(std::uint32_t bits) {
  const auto number = std::bit_cast<float>(bits);
  const Theirs expected(number);
  const Ours made = rounded<Ours>(number);
  if (std::isnan(number)) {
    EXPECT_TRUE(std::isnan(wide(made))) << bits;
  } else {
    EXPECT_EQ(made.bits, expected.x) << number;
    EXPECT_EQ(wide(made), static_cast<float>(expected)) << number;
  }
}

TEST(CudaKernels, NumbersAreRoundedToTheNearest) {
  for (std::uint64_t bits = 0; bits < 0x100000000; bits += 4093) {  // no power of two: all endings
    expect_rounded_as<Bfloat16, at::BFloat16>(static_cast<std::uint32_t>(bits));
    expect_rounded_as<Float16, at::Half>(static_cast<std::uint32_t>(bits));
  }
}

}  // namespace
}  // namespace paradyse::on_host
