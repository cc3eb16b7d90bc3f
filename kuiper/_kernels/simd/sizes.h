/* The heights of tiles, and the widths and strides of rows of depthwise windows, that have a
   micro-kernel each; F is a macro that makes one. */
#ifndef KUIPER_SIZES_H
#define KUIPER_SIZES_H

#define KP_HEIGHTS_8(F) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8)
#define KP_BYTE_WINDOWS(F) F(3, 1) F(3, 2) F(5, 1) F(5, 2)
#define KP_WINDOWS(F) KP_BYTE_WINDOWS(F) F(7, 1)

#endif
