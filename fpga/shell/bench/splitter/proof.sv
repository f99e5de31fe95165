// Users that do what they like, and a card that answers in any order: a tag of the card is handed
// out once at a time; every answer goes to the user that asked, with the tag that it used, once;
// data reaches the card only for a write of the user that sends it, after the card has asked for
// it; no tag is lost; who can be served is served. Turns are fair: network/bench/round_robin.
//
// The fields are narrow here (bench.toml).

`default_nettype none

module proof #(
  parameter int USERS = 2,
  parameter int USER_BITS = $clog2(USERS)
) (
  input wire logic                                      clk,
  input wire logic [USERS-1:0]                          s_valid,
  input wire logic [USERS*shell_pkg::COMMAND_BITS-1:0]  s_command,
  input wire logic [USERS*shell_pkg::USER_TAG_BITS-1:0] s_tag,
  input wire logic [USERS-1:0]                          user_read_ready,
  input wire logic [USERS-1:0]                          user_request_ready,
  input wire logic [USERS-1:0]                          user_write_valid,
  input wire logic [USERS*shell_pkg::USER_TAG_BITS-1:0] user_write_tag,
  input wire logic [USERS*shell_pkg::BURST_BITS-1:0]    user_write_burst,
  input wire logic [USERS-1:0]                          user_ack_ready,
  input wire logic                                      m_ready,
  input wire logic                                      read_valid,
  input wire logic [shell_pkg::TAG_BITS-1:0]            read_tag,
  input wire shell_pkg::burst_t                         read_burst,
  input wire logic                                      request_valid,
  input wire logic [shell_pkg::TAG_BITS-1:0]            request_tag,
  input wire logic                                      write_ready,
  input wire logic                                      ack_valid,
  input wire logic [shell_pkg::TAG_BITS-1:0]            ack_tag,
  input wire logic [shell_pkg::STATUS_BITS-1:0]         ack_status
);

  localparam int TAG_BITS = shell_pkg::TAG_BITS;
  localparam int TAGS = 1 << TAG_BITS;
  localparam int USER_TAG_BITS = shell_pkg::USER_TAG_BITS;
  localparam int COMMAND_BITS = shell_pkg::COMMAND_BITS;
  localparam int BURST_BITS = shell_pkg::BURST_BITS;
  localparam int OWNER_BITS = USER_BITS + USER_TAG_BITS;

  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  wire reset = !started;

  logic [USERS-1:0]                  s_ready;
  logic [USERS-1:0]                  user_read_valid;
  logic [USER_TAG_BITS-1:0]          user_read_tag;
  shell_pkg::burst_t                 user_read_burst;
  logic [USERS-1:0]                  user_request_valid;
  logic [USER_TAG_BITS-1:0]          user_request_tag;
  logic [USERS-1:0]                  user_write_ready;
  logic [USERS-1:0]                  user_ack_valid;
  logic [USER_TAG_BITS-1:0]          user_ack_tag;
  logic [shell_pkg::STATUS_BITS-1:0] user_ack_status;
  logic                              m_valid;
  shell_pkg::command_t               m_command;
  logic [TAG_BITS-1:0]               m_tag;
  logic                              read_ready;
  logic                              request_ready;
  logic                              write_valid;
  logic [TAG_BITS-1:0]               write_tag;
  shell_pkg::burst_t                 write_burst;
  logic                              ack_ready;
  logic [USERS-1:0]                  is_stray;

  splitter #(
    .USERS(USERS)
  ) splitter (
    .clk, .reset, .s_valid, .s_ready, .s_command, .s_tag, .user_read_valid, .user_read_ready,
    .user_read_tag, .user_read_burst, .user_request_valid, .user_request_ready, .user_request_tag,
    .user_write_valid, .user_write_ready, .user_write_tag, .user_write_burst, .user_ack_valid,
    .user_ack_ready, .user_ack_tag, .user_ack_status, .m_valid, .m_ready, .m_command, .m_tag,
    .read_valid, .read_ready, .read_tag, .read_burst, .request_valid, .request_ready, .request_tag,
    .write_valid, .write_ready, .write_tag, .write_burst, .ack_valid, .ack_ready, .ack_tag,
    .ack_status, .is_stray
  );

  wire [TAG_BITS-1:0] free_tag;                   // probe splitter.free_tag
  wire [TAG_BITS:0] fresh;                        // probe splitter.free_tags.fresh
  wire [TAG_BITS:0] level;                        // probe splitter.free_tags.queue.level
  wire [TAG_BITS:0] queue_taken;                  // probe splitter.free_tags.queue.taken
  wire [TAGS*TAG_BITS-1:0] queue;                 // probe splitter.free_tags.queue.memory[*]
  wire [TAGS*OWNER_BITS-1:0] owners;              // probe splitter.owners[*]
  wire [TAGS-1:0] design_open;                    // probe splitter.is_open
  localparam int RENAMED_BITS = TAG_BITS << USER_TAG_BITS;
  wire [RENAMED_BITS-1:0] renamed_0;              // probe splitter.users[0].renamed[*]
  wire [RENAMED_BITS-1:0] renamed_1;              // probe splitter.users[1].renamed[*]
  wire [2*RENAMED_BITS-1:0] renamed = {renamed_1, renamed_0};

  // What we know of each tag of the card: that it is out, whose it is, that the card has the
  // command, that it may ask for data, that it has asked, and that the user has not used its own
  // tag for another command since.
  logic [TAGS-1:0]            is_out;
  logic [TAGS-1:0]            is_sent;
  logic [TAGS-1:0]            is_write;
  logic [TAGS-1:0]            was_asked;
  logic [TAGS-1:0]            is_open;
  logic [TAGS-1:0]            is_latest;
  logic [TAGS*OWNER_BITS-1:0] ours;

  // The command that is taken now.
  logic                    take;
  logic [OWNER_BITS-1:0]   taker;
  shell_pkg::command_t     command;
  always_comb begin
    take = 1'b0;
    taker = '0;
    command = '0;
    for (int u = 0; u < USERS; u++) begin
      if (s_valid[u] && s_ready[u]) begin
        take = 1'b1;
        taker = {USER_BITS'(u), s_tag[USER_TAG_BITS*u +: USER_TAG_BITS]};
        command = s_command[COMMAND_BITS*u +: COMMAND_BITS];
      end
    end
  end

  // The data that is taken now, and what was known of all tags then.
  logic                       write_take;
  logic [OWNER_BITS-1:0]      writer;
  shell_pkg::burst_t          data;
  always_comb begin
    write_take = 1'b0;
    writer = '0;
    data = '0;
    for (int u = 0; u < USERS; u++) begin
      if (user_write_valid[u] && user_write_ready[u]) begin
        write_take = 1'b1;
        writer = {USER_BITS'(u), user_write_tag[USER_TAG_BITS*u +: USER_TAG_BITS]};
        data = user_write_burst[BURST_BITS*u +: BURST_BITS];
      end
    end
  end

  logic                       was_taken;        // in the last clock: what is shown is new
  shell_pkg::burst_t          last_data;
  logic [TAGS-1:0]            last_open;
  logic                       write_pending;
  logic [TAG_BITS-1:0]        last_write_tag;
  shell_pkg::burst_t          last_write_burst;
  // Whose tags the writer's tag can be.
  logic [TAGS-1:0]            candidates;
  always_comb begin
    for (int c = 0; c < TAGS; c++)
      candidates[c] = is_open[c] && ours[OWNER_BITS*c +: OWNER_BITS] == writer;
  end

  logic                  read_pending, request_pending, ack_pending, command_pending;
  logic [OWNER_BITS-1:0] read_owner, request_owner, ack_owner;
  shell_pkg::burst_t     wanted_burst;
  logic [shell_pkg::STATUS_BITS-1:0] wanted_status;
  shell_pkg::command_t   wanted_command;
  logic [TAG_BITS-1:0]   wanted_tag;

  wire read_fire = read_valid && read_ready;
  wire request_fire = request_valid && request_ready;
  wire ack_fire = ack_valid && ack_ready;

  always_ff @(posedge clk) begin
    if (m_valid && m_ready) begin
      is_sent[m_tag] <= 1'b1;
      command_pending <= 1'b0;
    end
    if (take) begin
      is_out[free_tag] <= 1'b1;
      is_sent[free_tag] <= 1'b0;
      is_write[free_tag] <= command.operation == shell_pkg::WRITE;
      was_asked[free_tag] <= 1'b0;
      ours[OWNER_BITS*free_tag +: OWNER_BITS] <= taker;
      for (int c = 0; c < TAGS; c++)
        if (ours[OWNER_BITS*c +: OWNER_BITS] == taker) is_latest[c] <= 1'b0;
      is_latest[free_tag] <= 1'b1;
      command_pending <= 1'b1;
      wanted_command <= command;
      wanted_tag <= free_tag;
    end
    if (request_fire) begin
      was_asked[request_tag] <= 1'b1;
      is_open[request_tag] <= 1'b1;
    end
    if (read_fire && read_burst.is_last) is_out[read_tag] <= 1'b0;
    if (ack_fire) begin
      is_out[ack_tag] <= 1'b0;
      is_open[ack_tag] <= 1'b0;
    end

    // Of the candidates one was chosen, which shows in the next clock.
    was_taken <= write_take;
    last_data <= data;
    last_open <= candidates;
    last_write_tag <= write_tag;
    last_write_burst <= write_burst;
    write_pending <= write_take || (write_pending && !write_ready);

    read_pending <= read_fire || (read_pending && (user_read_valid & user_read_ready) == '0);
    if (read_fire) begin
      read_owner <= ours[OWNER_BITS*read_tag +: OWNER_BITS];
      wanted_burst <= read_burst;
    end
    request_pending <= request_fire ||
                       (request_pending && (user_request_valid & user_request_ready) == '0);
    if (request_fire) request_owner <= ours[OWNER_BITS*request_tag +: OWNER_BITS];
    ack_pending <= ack_fire || (ack_pending && (user_ack_valid & user_ack_ready) == '0);
    if (ack_fire) begin
      ack_owner <= ours[OWNER_BITS*ack_tag +: OWNER_BITS];
      wanted_status <= ack_status;
    end

    if (reset) begin
      is_out <= '0;
      is_open <= '0;
      is_latest <= '0;
      command_pending <= 1'b0;
      write_pending <= 1'b0;
      was_taken <= 1'b0;
      read_pending <= 1'b0;
      request_pending <= 1'b0;
      ack_pending <= 1'b0;
    end
    // The last burst closes the write: of the tag to which the design gave it.
    if (write_take && data.is_last) is_open[granted_tag] <= 1'b0;
  end
  wire [TAG_BITS-1:0] granted_tag;                // probe splitter.granted_tag

  // The card answers what it was asked, and asks once for the data of a write.
  always_comb begin
    if (read_valid) assume (is_out[read_tag] && is_sent[read_tag] && !is_write[read_tag]);
    if (request_valid)
      assume (is_out[request_tag] && is_sent[request_tag] && is_write[request_tag] &&
              !was_asked[request_tag]);
    if (ack_valid) begin
      assume (is_out[ack_tag] && is_sent[ack_tag]);
      assume (!(read_valid && read_tag == ack_tag) && !(request_valid && request_tag == ack_tag));
    end
  end

  logic [TAGS-1:0] is_queued;
  logic            is_twice;
  logic [TAG_BITS-1:0] at;
  always_comb begin
    is_queued = '0;
    is_twice = 1'b0;
    at = '0;
    for (int i = 0; i < TAGS; i++) begin
      at = queue[TAG_BITS * ((queue_taken + i) % TAGS) +: TAG_BITS];
      if (i < level) begin
        if (is_queued[at]) is_twice = 1'b1;
        is_queued[at] = 1'b1;
      end
    end
  end

  for (genvar c = 0; c < TAGS; c++) begin : tags
    wire [OWNER_BITS-1:0] owner = ours[OWNER_BITS*c +: OWNER_BITS];
    wire [USER_BITS-1:0] user = owner[OWNER_BITS-1 -: USER_BITS];
    wire [USER_TAG_BITS-1:0] tag = owner[USER_TAG_BITS-1:0];
    always_comb begin
      if (started) begin
        assert (2'(c >= fresh) + 2'(is_queued[c]) + 2'(is_out[c]) == 1);
        if (is_out[c]) begin
          assert (owners[OWNER_BITS*c +: OWNER_BITS] == owner && user < USERS);
          assert (is_sent[c] == !(command_pending && wanted_tag == c));
          if (is_latest[c])
            assert (renamed[TAG_BITS * ((user << USER_TAG_BITS) + tag) +: TAG_BITS] == c);
        end else assert (!is_open[c]);
        if (is_open[c]) assert (is_write[c] && was_asked[c]);
        for (int d = 0; d < c; d++) begin
          if (is_out[c] && is_out[d] && ours[OWNER_BITS*d +: OWNER_BITS] == owner)
            assert (!is_latest[c] || !is_latest[d]);
        end
      end
    end
  end

  wire has_place = !write_valid || write_ready;
  logic is_due;          // a user has data of a write that the card has asked for
  always_comb begin
    is_due = 1'b0;
    for (int u = 0; u < USERS; u++) begin
      for (int c = 0; c < TAGS; c++) begin
        if (user_write_valid[u] && is_open[c] && is_latest[c] && ours[OWNER_BITS*c +: OWNER_BITS] ==
            {USER_BITS'(u), user_write_tag[USER_TAG_BITS*u +: USER_TAG_BITS]}) is_due = 1'b1;
      end
    end
  end

  always_comb begin
    if (started) begin
      if (take) a_once: assert (!is_out[free_tag]);
      a_bounds: assert (fresh <= TAGS && level <= TAGS && !is_twice);
      a_same_open: assert (design_open == is_open);

      // Commands.
      a_command: assert (m_valid == command_pending);
      if (m_valid) begin
        a_command_kept: assert (m_command == wanted_command && m_tag == wanted_tag);
        a_command_out: assert (is_out[m_tag]);
      end
      a_command_progress: assert (take == (s_valid != '0 && is_out != '1 && (!m_valid || m_ready)));
      a_command_one: assert ((s_ready & (s_ready - 1'b1)) == '0);

      // Answers.
      a_read: assert (user_read_valid ==
                      (read_pending ? USERS'(1) << read_owner[OWNER_BITS-1 -: USER_BITS] : '0));
      if (read_pending) a_read_tag: assert (read_owner[OWNER_BITS-1 -: USER_BITS] < USERS &&
        user_read_tag == read_owner[USER_TAG_BITS-1:0] && user_read_burst == wanted_burst);
      a_request: assert (user_request_valid ==
        (request_pending ? USERS'(1) << request_owner[OWNER_BITS-1 -: USER_BITS] : '0));
      if (request_pending) a_request_tag: assert (
        request_owner[OWNER_BITS-1 -: USER_BITS] < USERS &&
        user_request_tag == request_owner[USER_TAG_BITS-1:0]);
      a_ack: assert (user_ack_valid ==
                     (ack_pending ? USERS'(1) << ack_owner[OWNER_BITS-1 -: USER_BITS] : '0));
      if (ack_pending) a_ack_tag: assert (ack_owner[OWNER_BITS-1 -: USER_BITS] < USERS &&
        user_ack_tag == ack_owner[USER_TAG_BITS-1:0] && user_ack_status == wanted_status);
      a_read_progress: assert (read_ready ==
                               (!read_pending || (user_read_valid & user_read_ready) != '0));
      a_ack_progress: assert (ack_ready ==
        ((!ack_pending || (user_ack_valid & user_ack_ready) != '0) &&
         !(read_fire && read_burst.is_last)));

      // Data of writes.
      a_write: assert (write_valid == write_pending);
      if (was_taken) a_write_owner: assert (last_open[write_tag] && write_burst == last_data);
      else if (write_valid)
        a_write_kept: assert (write_tag == last_write_tag && write_burst == last_write_burst);
      if (write_take) a_granted: assert (candidates[granted_tag]);
      if (is_due && has_place) a_write_progress: assert (write_take);
    end
  end

endmodule

`default_nettype wire
