// Under sanitizers a test takes ten times as long: of random cases that only differ by their seeds
// it tries fewer there.  The release build tries all.
#pragma once

namespace paradyse::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace paradyse::test
