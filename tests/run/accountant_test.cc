// The memory accountant: who is charged for what, when it refuses, and what it gives back.
#include "paradyse/run/accountant.h"

#include <array>
#include <memory>
#include <optional>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "src/plan/base/bytes_text.h"
#include "src/run/memory/device_blocks.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::HasSubstr;

at::Tensor tensor(std::int64_t bytes) { return at::empty({bytes}, at::kByte); }

class AccountantTest : public testing::Test {
 protected:
  void SetUp() override {
    install_accounting_allocator();
    install_accounting_allocator();  // again: nothing
  }
};

TEST_F(AccountantTest, CountsByCategoryWhileScopesLive) {
  Accountant memory("rank 0");
  const at::Tensor outside = tensor(1000);
  EXPECT_EQ(memory.live_bytes(), 0);
  at::Tensor a;
  at::Tensor b;
  {
    const MemoryScope scope(memory, Category::parameters, "parameters");
    a = tensor(100);
    {
      const MemoryScope inner(Category::saved, "layer 1");
      b = tensor(30);
    }
    const at::Tensor view = a.narrow(0, 10, 20);  // no memory of its own
    EXPECT_EQ(memory.live_bytes(Category::parameters), 100);
    const at::Tensor more = tensor(5);  // the category is the outer one again
    EXPECT_EQ(memory.live_bytes(Category::parameters), 105);
  }
  const at::Tensor after = tensor(1000);
  EXPECT_EQ(memory.live_bytes(), 130);
  EXPECT_EQ(memory.live_bytes(Category::parameters), 100);
  EXPECT_EQ(memory.live_bytes(Category::saved), 30);
  a = at::Tensor();
  EXPECT_EQ(memory.live_bytes(Category::parameters), 0);
  EXPECT_EQ(memory.live_bytes(), 30);
  EXPECT_EQ(memory.peak_bytes(), 135);
  EXPECT_EQ(memory.at_peak()[static_cast<std::size_t>(Category::parameters)], 105);
  EXPECT_EQ(memory.at_peak()[static_cast<std::size_t>(Category::saved)], 30);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), 30);
  EXPECT_EQ(memory.at_peak()[static_cast<std::size_t>(Category::parameters)], 0);
}

TEST_F(AccountantTest, NestedAccountantsAreSeparate) {
  Accountant outer("outer");
  Accountant inner("inner");
  const MemoryScope a(outer, Category::transient, "a");
  at::Tensor x = tensor(10);
  {
    const MemoryScope b(inner, Category::saved, "b");
    x = tensor(7);  // the 10 bytes go back to outer
  }
  const at::Tensor y = tensor(3);
  EXPECT_EQ(outer.live_bytes(), 3);
  EXPECT_EQ(inner.live_bytes(), 7);
}

// Bytes of blocks so large that the C library maps each by itself.
std::int64_t mapped_bytes() { return static_cast<std::int64_t>(mallinfo2().hblkhd); }

// A step's blocks serve the next step, whose peak is counted anew; with a budget they give way to
// blocks of other sizes.
TEST_F(AccountantTest, BlocksWaitForTheNextStep) {
  constexpr std::int64_t kMiB = 1 << 20;
  const std::int64_t before = mapped_bytes();
  const auto held = [&] { return (mapped_bytes() - before) / kMiB; };
  {
    Accountant memory("rank 0");
    const MemoryScope scope(memory, Category::saved, "step");
    for (int step = 0; step < 3; ++step) {
      memory.reset_peak();
      {
        const at::Tensor small = tensor(100);
      }
      EXPECT_EQ(held(), step == 0 ? 0 : 64) << step;
      const at::Tensor large = tensor(64 * kMiB - 1000);
      EXPECT_EQ(held(), 64) << step;
    }
  }
  EXPECT_EQ(held(), 0);
  Accountant memory("rank 0", 100 * kMiB);
  const MemoryScope scope(memory, Category::saved, "step");
  {
    const at::Tensor one = tensor(64 * kMiB - 1000);
  }
  EXPECT_EQ(held(), 64);
  const at::Tensor other = tensor(48 * kMiB - 1000);
  EXPECT_EQ(held(), 48);
}

TEST_F(AccountantTest, RecategorizeMovesWholeStorages) {
  Accountant memory("rank 0");
  at::Tensor x;
  {
    const MemoryScope scope(memory, Category::transient, "op");
    x = tensor(64);
  }
  Accountant::recategorize(x.narrow(0, 8, 8), Category::saved);
  EXPECT_EQ(memory.live_bytes(Category::transient), 0);
  EXPECT_EQ(memory.live_bytes(Category::saved), 64);
  EXPECT_EQ(memory.live_bytes(), 64);
  Accountant::recategorize(at::Tensor(), Category::saved);
  Accountant::recategorize(tensor(0), Category::saved);
  Accountant::recategorize(tensor(9), Category::saved);  // of no accountant
  std::vector<std::uint8_t> foreign(16);
  Accountant::recategorize(
      at::from_blob(foreign.data(), {16}, at::kByte), Category::saved);  // of another allocator
  EXPECT_EQ(memory.live_bytes(Category::saved), 64);
  x = at::Tensor();
  EXPECT_EQ(memory.live_bytes(Category::saved), 0);
}

TEST_F(AccountantTest, TheBudgetIsExactAndTheMessageSaysWhatToKnow) {
  Accountant memory("rank 3", 10000);
  std::optional<MemoryScope> scope;
  scope.emplace(memory, Category::parameters, "parameters");
  const at::Tensor p = tensor(4000);
  std::string label = "layer 2 mlp linear";  // dies before its blocks do
  at::Tensor s;
  {
    const MemoryScope inner(Category::saved, label.c_str());
    s = tensor(3000);
  }
  std::fill(label.begin(), label.end(), '?');
  {
    const MemoryScope inner(Category::transient, "layer 3 attention rope");
    const at::Tensor fits = tensor(3000);
    EXPECT_EQ(memory.live_bytes(), 10000);
    EXPECT_THAT(
        test::refusal<OutOfMemory>([&] { tensor(2048); }),
        AllOf(
            HasSubstr("rank 3: out of memory in layer 3 attention rope: requested 2.0 KiB"),
            HasSubstr("9.8 KiB of a budget of 9.8 KiB in use"),
            HasSubstr("parameters 3.9 KiB"),
            HasSubstr("saved 2.9 KiB"),
            HasSubstr("transient 2.9 KiB"),
            HasSubstr("Largest holders: parameters (3.9 KiB), layer"),
            HasSubstr("layer 2 mlp linear (2.9 KiB)"),
            HasSubstr("--memory-per-rank")));
    EXPECT_EQ(memory.live_bytes(), 10000);  // the refused one was not counted
    EXPECT_EQ(memory.peak_bytes(), 10000);
  }
  EXPECT_THROW(tensor(3001), OutOfMemory);
  const at::Tensor again = tensor(3000);
}

TEST_F(AccountantTest, ALongLabelIsCutNotOverrun) {
  Accountant memory("rank 0", 100);
  const std::string label(500, 'x');
  const MemoryScope scope(memory, Category::transient, label.c_str());
  const at::Tensor x = tensor(60);
  EXPECT_THROW(tensor(60), OutOfMemory);
  EXPECT_EQ(memory.live_bytes(), 60);
}

TEST_F(AccountantTest, BlocksMayDieOnAnotherThread) {
  Accountant memory("rank 0");
  std::vector<at::Tensor> tensors;
  {
    const MemoryScope scope(memory, Category::saved, "op");
    for (int i = 0; i < 200; ++i) {
      tensors.push_back(tensor(100 + i));
    }
  }
  std::thread other([&] {
    Accountant mine("rank 1");
    const MemoryScope scope(mine, Category::transient, "op");
    while (!tensors.empty()) {
      tensors.pop_back();
    }
    EXPECT_EQ(mine.live_bytes(), 0);
    EXPECT_EQ(mine.peak_bytes(), 0);
  });
  {
    const MemoryScope scope(memory, Category::transient, "op");
    for (int i = 0; i < 2000; ++i) {  // at the same time
      tensor(100 + i % 200);
    }
  }
  other.join();
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.live_bytes(Category::saved), 0);
}

TEST_F(AccountantTest, BlocksMayOutliveTheAccountant) {
  std::vector<at::Tensor> tensors;
  {
    Accountant memory("rank 0");
    const MemoryScope scope(memory, Category::saved, "op");
    for (int i = 0; i < 10; ++i) {
      tensors.push_back(at::full({1000}, i, at::kInt));
    }
    tensor(5000);  // one that is kept for reuse when the accountant goes
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(tensors[static_cast<std::size_t>(i)].eq(i).all().item<bool>());
  }
  Accountant::recategorize(tensors[0], Category::gradients);
  std::thread other([&] { tensors.resize(5); });
  tensors[0] = at::Tensor();
  other.join();
  tensors.clear();
}

TEST_F(AccountantTest, FreedBlocksServeTheNextOfTheirSize) {
  Accountant memory("rank 0");
  const MemoryScope scope(memory, Category::transient, "op");
  const void* first = nullptr;
  {
    const at::Tensor x = tensor(1 << 20);
    first = x.const_data_ptr();
  }
  const at::Tensor y = tensor((1 << 20) - 100);  // of about that size
  EXPECT_EQ(y.const_data_ptr(), first);
  EXPECT_EQ(memory.live_bytes(), (1 << 20) - 100);  // what was asked for, not the block
  EXPECT_EQ(memory.peak_bytes(), 1 << 20);
  for (const std::int64_t bytes : {1, 63, 512, 513, 1000, 123456, 1 << 22}) {
    const at::Tensor z = tensor(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(z.const_data_ptr()) % 64, 0U) << bytes;
    z.fill_(7);
    EXPECT_TRUE(y.defined());
  }
}

TEST_F(AccountantTest, EmptyTensorsTakeNothing) {
  Accountant memory("rank 0", 1);
  const MemoryScope scope(memory, Category::transient, "op");
  const at::Tensor x = at::empty({0, 5});
  const at::Tensor y = at::cat({x, x});
  EXPECT_EQ(y.numel(), 0);
  EXPECT_EQ(memory.live_bytes(), 0);
  EXPECT_EQ(memory.peak_bytes(), 0);
}

// resize_ and clone go through the same allocator.
TEST_F(AccountantTest, ResizedAndClonedTensorsAreCounted) {
  Accountant memory("rank 0");
  const MemoryScope scope(memory, Category::transient, "op");
  at::Tensor x = at::full({100}, 3, at::kByte);
  x.resize_({1000});
  EXPECT_EQ(x[99].item<int>(), 3);
  EXPECT_EQ(memory.live_bytes(), 1000);
  const at::Tensor y = x.clone();
  EXPECT_EQ(memory.live_bytes(), 2000);
  x = at::Tensor();
  EXPECT_EQ(memory.live_bytes(), 1000);
}

// Blocks of a device: numbers of the host stand for their addresses.
class DeviceBlocks : public testing::Test {
 protected:
  void* take(std::size_t bytes, c10::DeviceType device = c10::kCUDA) {
    return device_allocate(device, bytes, [&] { return &places_.at(next_++); });
  }
  std::array<int, 16> places_{};
  std::size_t next_ = 0;
};

TEST_F(DeviceBlocks, CountWhereTheAccountantsDeviceIs) {
  install_accounting_allocator();
  Accountant memory("rank 0", 100, c10::Device(c10::kCUDA));
  void* const nobodys = take(1000);
  void* first = nullptr;
  {
    const MemoryScope scope(memory, Category::saved, "layer 1");
    first = take(40);
    const at::Tensor host = tensor(1000);  // no memory of the rank's device
    take(1000, c10::kXPU);
    EXPECT_EQ(memory.live_bytes(Category::saved), 40);
    void* const second = take(60);
    EXPECT_EQ(memory.live_bytes(), 100);
    EXPECT_THAT(
        test::refusal<OutOfMemory>([&] { take(1); }),
        AllOf(HasSubstr("rank 0"), HasSubstr("layer 1 (100 B)")));
    EXPECT_EQ(next_, 4) << "refused before it was allocated";
    device_free(second);
    EXPECT_EQ(memory.live_bytes(), 40);
    EXPECT_EQ(memory.peak_bytes(), 100);
    // a device that fails: nothing stays counted
    EXPECT_THROW(
        device_allocate(c10::kCUDA, 10, []() -> void* { throw std::runtime_error("an address"); }),
        std::runtime_error);
    EXPECT_EQ(memory.live_bytes(), 40);
    {
      const HostScope library;
      take(50);
    }
    EXPECT_EQ(memory.live_bytes(), 40);
  }
  device_free(nobodys);
  device_free(first);
  EXPECT_EQ(memory.live_bytes(), 0);
  device_free(first);  // nobody's any more
}

// A device that has none left is a lack of memory like a budget's, whether the block would have
// been counted or not.
TEST_F(DeviceBlocks, AFullDeviceIsOutOfMemory) {
  const auto full = []() -> void* {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 20 MiB.");
  };
  const auto message = [&](std::size_t bytes) {
    return test::refusal<OutOfMemory>([&] { device_allocate(c10::kCUDA, bytes, full); });
  };
  Accountant memory("rank 2", 8192, c10::Device(c10::kCUDA));
  const MemoryScope scope(memory, Category::saved, "layer 1 mlp linear");
  void* const block = take(1024);
  const auto says = AllOf(
      HasSubstr(
          "rank 2: out of memory in layer 1 mlp linear: the device itself has no 2.0 KiB left"),
      HasSubstr("1.0 KiB of a budget of 8.0 KiB in use (saved 1.0 KiB)"),
      HasSubstr("Largest holders: layer 1 mlp linear (1.0 KiB)"),
      HasSubstr("It says: CUDA out of memory. Tried to allocate 20 MiB."));
  EXPECT_THAT(message(2048), says);
  {
    const HostScope library;
    EXPECT_THAT(message(2048), says);
  }
  EXPECT_EQ(memory.live_bytes(), 1024);
  EXPECT_EQ(memory.live_bytes(Category::saved), 1024);
  device_free(block);
}

TEST_F(DeviceBlocks, AFullDeviceOfNobody) {
  EXPECT_THAT(
      [] {
        device_allocate(
            c10::kCUDA, 2048, []() -> void* { TORCH_CHECK_WITH(OutOfMemoryError, false, "full"); });
      },
      testing::ThrowsMessage<OutOfMemory>(HasSubstr("the device has no 2.0 KiB left")));
}

TEST_F(DeviceBlocks, MayOutliveTheAccountant) {
  void* block = nullptr;
  {
    Accountant memory("rank 0", 0, c10::Device(c10::kCUDA));
    const MemoryScope scope(memory, Category::parameters, "parameters");
    block = take(10);
  }
  device_free(block);
}

TEST(ParseBytes, NumbersAndUnits) {
  EXPECT_EQ(parse_bytes("1000000"), 1000000);
  EXPECT_EQ(parse_bytes("512MiB"), 512LL << 20);
  EXPECT_EQ(parse_bytes("2GiB"), 2LL << 30);
  EXPECT_EQ(parse_bytes("1.5 KiB"), 1536);
  EXPECT_EQ(parse_bytes("3kB"), 3000);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("1TiB"), 1LL << 40);
  for (const char* bad :
       {"",
        "MiB",
        "-1MiB",
        "1 XB",
        "nan",
        "inf",
        "1e30",
        "99999999TiB",
        "1MiB extra",
        "0x10",
        " 5MiB"}) {
    EXPECT_THAT(
        test::refusal([&] { parse_bytes(bad); }),
        AllOf(HasSubstr("'" + std::string(bad) + "'"), HasSubstr("512MiB")));
  }
}

TEST(BytesText, ForPeople) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(512LL << 20), "512.0 MiB");
  EXPECT_EQ(bytes_text(3LL << 40), "3.0 TiB");
}

}  // namespace
}  // namespace paradyse
