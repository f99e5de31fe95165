// Widths, the packet and the frame of the storage network.
//
// BlueDBM, section 3.2: packets of 128 bits with a header; logical endpoints share the links. The
// paper states neither the header's fields nor their widths: these are ours. They are chosen so
// that a frame is 21 bytes.

`default_nettype none

package network_pkg;
  localparam int NODE_BITS = 5;      // up to 32 nodes: the paper's rack has 20
  localparam int ENDPOINT_BITS = 4;  // indices 0 to 15; those in use may have gaps
  localparam int PAYLOAD_BITS = 128;
  localparam int SEQUENCE_BITS = 7;  // numbers of packets on a link, modulo 128
  localparam int CHECK_BITS = 16;

  // What travels from endpoint to endpoint. The endpoint's index is the same at both ends.
  typedef struct packed {
    logic                     credit;       // end-to-end flow control: payload = packets taken
    logic [ENDPOINT_BITS-1:0] endpoint;
    logic [NODE_BITS-1:0]     source;
    logic [NODE_BITS-1:0]     destination;
    logic [PAYLOAD_BITS-1:0]  payload;
  } packet_t;

  localparam int PACKET_BITS = 1 + ENDPOINT_BITS + 2 * NODE_BITS + PAYLOAD_BITS;

  // What travels over one cable, first field first. A frame without a packet, which a link sends
  // whenever it has no packet, is IDLE_FRAME_BITS long; the rest is then zero and not sent.
  typedef struct packed {
    logic                     has_packet;
    logic                     is_freed;     // what the report counts
    logic [SEQUENCE_BITS-1:0] report;       // packets received in order, or freed, so far
    packet_t                  packet;
    logic [CHECK_BITS-1:0]    check;
  } frame_t;

  localparam int FRAME_BITS = 2 + SEQUENCE_BITS + PACKET_BITS + CHECK_BITS;
  localparam int IDLE_FRAME_BITS = 32;      // 25, in whole bytes

  // A line of a routing table: the port towards a destination.
  localparam int PORT_BITS = 3;             // up to 8 ports
  localparam int TABLE_BITS = ENDPOINT_BITS + NODE_BITS;

  // CRC-16 (x^16 + x^12 + x^5 + 1) of the message {sequence, frame without check}. It finds any
  // three wrong bits; the descrambler of 64b/66b makes three of one.
  localparam int MESSAGE_BITS = FRAME_BITS - CHECK_BITS;

  function automatic [CHECK_BITS-1:0] crc_of(
    input [CHECK_BITS-1:0] start,
    input [MESSAGE_BITS-1:0] message
  );
    crc_of = start;
    for (int i = MESSAGE_BITS - 1; i >= 0; i--) begin
      crc_of = {crc_of[CHECK_BITS-2:0], 1'b0} ^
               (crc_of[CHECK_BITS-1] ^ message[i] ? 16'h1021 : 16'h0000);
    end
  endfunction

  // The part of the sequence number in the check: a CRC is linear. The number itself is not sent;
  // a packet with another number than the expected one has a wrong check.
  function automatic [CHECK_BITS-1:0] crc_of_sequence(input [SEQUENCE_BITS-1:0] sequence_number);
    crc_of_sequence = '0;
    for (int i = SEQUENCE_BITS - 1; i >= 0; i--) begin
      crc_of_sequence = {crc_of_sequence[CHECK_BITS-2:0], 1'b0} ^
                        (crc_of_sequence[CHECK_BITS-1] ^ sequence_number[i] ? 16'h1021 : 16'h0000);
    end
    crc_of_sequence = crc_of(crc_of_sequence, '0);
  endfunction
endpackage

`default_nettype wire
